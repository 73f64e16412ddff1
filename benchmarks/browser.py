"""What a learner waits for, in a real JupyterLab in headless Chromium: dials, first displays, the timeline viewer.

`python -m benchmarks.browser`. All times are taken inside the page, from the key's own event (or the start of the
cell) to the frame after the picture changed, so the driver's own delays are not in them. Goals: issue "Pictures that
move".
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import BrowserContext

from benchmarks.paired import write_table
from helpers import widgets
from helpers.widgets.explorer import Explorer
from tests.browser import chromium
from tests.browser.desk import Desk, window
from tests.browser.notebook import Notebook, opened
from tests.browser.server import Lab, serve
from tools.tidy_notebooks import LIMIT

ROOT = Path(__file__).resolve().parent.parent
OFFERED = {name: getattr(widgets, name) for name in widgets.__all__}
EXPLORERS = sorted(name for name, value in OFFERED.items() if isinstance(value, type) and issubclass(value, Explorer))
PRESSES, DISPLAYS, FRAMES = 32, 7, 60
# A plan in which every dial of MemoryExplorer moves the picture; from one rank a ZeRO stage, for one, does nothing.
SPREAD = """from helpers.specs import Plan
explorer = MemoryExplorer()
explorer.show("llama3-8b", "H100", Plan(
    dp=4, tp=8, pp=16, cp=2, zero=1, micro_batch=2, num_microbatches=4, attention="materialized"
))
explorer"""
NUM_SPANS = 20_000

# The picture is there with the frame after the change of the document.
ON_CHANGE = """const changed = (node, act) => new Promise(done => {
    const observer = new MutationObserver(() => {
        observer.disconnect();
        requestAnimationFrame(() => setTimeout(() => done(performance.now())));
    });
    observer.observe(node, {childList: true, subtree: true, characterData: true});
    act();
});"""
WATCH_KEY = f"""node => {{
    {ON_CHANGE}
    window.keyToPicture = new Promise((done, fail) => document.addEventListener("keydown", event => {{
        const pressed = event.timeStamp;
        changed(node, () => {{}}).then(shown => done(shown - pressed));
        setTimeout(() => fail(Error("the picture stays")), 10_000);
    }}, {{capture: true, once: true}}));
}}"""
DISPLAY = """id => new Promise(done => {
    const { content } = window.jupyterapp.shell.currentWidget;
    const index = content.widgets.findIndex(cell => cell.model.id === id);
    const { node } = content.widgets[index];
    const picture = () => node.querySelector(".widget-html-content svg, .rr-timeline canvas");
    content.activeCellIndex = index;
    node.scrollIntoView({block: "start"});
    const began = performance.now();
    const observer = new MutationObserver(() => {
        if (!picture()) return;
        observer.disconnect();
        requestAnimationFrame(() => setTimeout(() => done(performance.now() - began)));
    });
    observer.observe(node, {childList: true, subtree: true});
    window.jupyterapp.commands.execute("notebook:run-cell");
})"""
# One wheel event a frame, as a trackpad sends them; the time between frames, and what the viewer itself took of it.
ZOOM = """async ([node, count]) => {
    const canvas = node.querySelector("canvas[tabindex]"), box = canvas.getBoundingClientRect(), intervals = [];
    const next = () => new Promise(requestAnimationFrame);
    canvas.focus({preventScroll: true});
    node.__timeline.frameTimes.length = 0;
    let before = await next();
    for (let n = 0; n < count; n++) {
        canvas.dispatchEvent(new WheelEvent("wheel", {deltaY: n < count / 2 ? -40 : 40, bubbles: true, cancelable: true,
            clientX: box.left + box.width / 2, clientY: box.top + 60}));
        const now = await next();
        intervals.push(now - before);
        before = now;
    }
    return [intervals, [...node.__timeline.frameTimes]];
}"""
TIMELINE = f"""
from helpers.records import Span, Timeline
from helpers.widgets import TimelineExplorer
spans = [
    Span(rank=n % 8, lane=("compute", "communication")[n % 2], name=f"layers.{{n % 40}}",
         kind=("forward", "communication", "backward", "communication")[n % 4],
         start=(n // 8) * 1e-3, end=(n // 8) * 1e-3 + 0.8e-3, num_bytes=4096 * (n % 2))
    for n in range({NUM_SPANS})
]
timeline = Timeline(spans=spans, source="predicted", title="{NUM_SPANS:,} spans")
"""


def row(what: str, milliseconds: list[float], goal: str) -> dict[str, str]:
    """The median, with the slowest beside it."""
    middle, slowest = statistics.median(milliseconds), max(milliseconds)
    measured = f"{middle:.0f} ms" + (f" (slowest of {len(milliseconds)}: {slowest:.0f})" if milliseconds[1:] else "")
    print(f"{what}: {measured}", file=sys.stderr, flush=True)
    return {"what": what, "measured": measured, "goal": goal}


def source(name: str) -> str:
    return SPREAD if name == "MemoryExplorer" else f"explorer = {name}()\nexplorer"


def explorer(name: str) -> Explorer:
    """What `source` shows."""
    space = {name: getattr(widgets, name)}
    exec(source(name), space)
    return space["explorer"]


def dial_row(notebook: Notebook, name: str, cell: str) -> dict[str, str]:
    """Key presses on all sliders of an explorer that is shown in this cell."""
    output = notebook.cell(cell).locator(".jp-Cell-outputArea")
    picture = output.locator(".widget-html-content").filter(has=notebook.page.locator("svg")).first
    dials = [dial for dial in explorer(name).dials if dial.kind == "slider"]
    times = []
    for number in range(PRESSES):
        dial = dials[number // 2 % len(dials)]
        keys = ("ArrowRight", "ArrowLeft") if dial.index < len(dial.options) - 1 else ("ArrowLeft", "ArrowRight")
        handle = notebook.dial(dial.description, output)
        handle.focus()
        picture.evaluate(WATCH_KEY)
        notebook.page.keyboard.press(keys[number % 2])
        times.append(notebook.page.evaluate("window.keyToPicture"))
    return row(f"{name}: key on a dial to picture, {len(dials)} dials", times, "100 ms")


@contextmanager
def on_a_fresh_page(browser: BrowserContext, lab: Lab, path: str) -> Iterator[Notebook]:
    desk = Desk(browser, lab)
    with opened(desk, path) as notebook:
        yield notebook
    desk.page.close()


def explorer_rows(browser: BrowserContext, lab: Lab, name: str) -> list[dict[str, str]]:
    sources = [f"from helpers.widgets import {name}\n{name}()", *[f"{name}()"] * DISPLAYS, source(name)]
    with on_a_fresh_page(browser, lab, lab.write(f"{name}.ipynb", *sources)) as notebook:
        first = notebook.page.evaluate(DISPLAY, "cell-0")
        later = [notebook.page.evaluate(DISPLAY, f"cell-{number}") for number in range(1, DISPLAYS + 1)]
        notebook.page.evaluate(DISPLAY, f"cell-{DISPLAYS + 1}")
        return [
            row(f"{name}: first display, imports done", later, "300 ms"),
            row(f"{name}: the very first of a kernel and a page, with imports", [first], "reported"),
            dial_row(notebook, name, f"cell-{DISPLAYS + 1}"),
        ]


def timeline_rows(browser: BrowserContext, lab: Lab) -> list[dict[str, str]]:
    small = "TimelineExplorer(Timeline(spans=spans[:64], source='predicted'))"
    sources = [TIMELINE, small, *[small] * DISPLAYS, *["TimelineExplorer(timeline)"] * DISPLAYS]
    with on_a_fresh_page(browser, lab, lab.write("timeline.ipynb", *sources)) as notebook:
        notebook.run("cell-0")
        first, *times = (notebook.page.evaluate(DISPLAY, f"cell-{n}") for n in range(1, 2 * DISPLAYS + 2))
        viewer = notebook.cell(f"cell-{2 * DISPLAYS + 1}").locator(".rr-timeline")
        notebook.page.wait_for_function("node => node.__timeline.loadMs > 0", arg=viewer.element_handle())
        load = viewer.evaluate("node => node.__timeline.loadMs")
        intervals, draws = notebook.page.evaluate(ZOOM, [viewer.element_handle(), FRAMES])
    return [
        row("TimelineExplorer, 64 spans: first display, imports done", times[:DISPLAYS], "300 ms"),
        row("TimelineExplorer, 64 spans: the very first of a kernel and a page", [first], "reported"),
        row(f"TimelineExplorer, {NUM_SPANS:,} spans: from its cell to the picture", times[DISPLAYS:], "1 s"),
        row(f"TimelineExplorer, {NUM_SPANS:,} spans: the last of these, in the page", [load], "1 s"),
        row(f"TimelineExplorer, {NUM_SPANS:,} spans: frame to frame while the wheel zooms", intervals, "33 ms"),
        row(f"TimelineExplorer, {NUM_SPANS:,} spans: of that, drawing", draws, "33 ms"),
    ]


def size_rows() -> list[dict[str, str]]:
    return [
        {"what": f"saved {path.name}", "measured": f"{path.stat().st_size / 1e3:.0f} kB", "goal": f"{LIMIT // 1000} kB"}
        for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
    ]


def main() -> int:
    if reason := chromium.why_not():
        print(f"Nothing is measured: {reason}.", file=sys.stderr)
        return 1
    rows = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        with serve(Path(folder)) as lab, window(chromium.PATH, Path(folder) / "profile") as browser:
            for name in EXPLORERS:
                rows += explorer_rows(browser, lab, name)
            rows += timeline_rows(browser, lab)
    print(write_table("browser", rows + size_rows(), "python -m benchmarks.browser").read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
