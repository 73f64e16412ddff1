"""The timeline viewer in a real JupyterLab: keys, wheel, pointer, play, themes; also while the kernel is busy."""

from __future__ import annotations

import pytest

SETUP = """
import time
busy = False
from helpers.predict.time.data_parallel import BackwardPass, simulate_ddp_step
from helpers.records import Span, Timeline
from helpers.specs import Link
from helpers.widgets import TimelineExplorer
four = BackwardPass(names=tuple("dcba"), num_bytes=(2**21,) * 4, seconds=(1.0,) * 4, forward_seconds=2.0)
step = simulate_ddp_step(four, link=Link(latency=0.5, bandwidth=2**21), world_size=2, bucket_cap_mb=4)
recorded = Timeline(
    spans=[Span(rank=0, lane="compute", name="head", kind="other", start=7, end=9)], source="recorded", title=step.title
)
"""
CELLS = {
    "setup": SETUP,
    "show": "explorer = TimelineExplorer(step, recorded); explorer",
    "read": "explorer.playhead, explorer.selected_rank, explorer.zoom",
    "set": "explorer.playhead = 4.5",
    "sleep": "print('busy'); time.sleep(60)",
    "many": """many = simulate_ddp_step(four, link=Link(latency=0.5, bandwidth=2**21), world_size=16, bucket_cap_mb=4)
TimelineExplorer(many)""",
    "bad": "TimelineExplorer()",
}
WATCH = """clock => {
    window.seen = [];
    const note = () => { if (window.seen.at(-1) !== clock.textContent) window.seen.push(clock.textContent); };
    new MutationObserver(note).observe(clock, {childList: true});
}"""


class Viewer:
    def __init__(self, notebook, name):
        notebook.run(name)
        self.notebook, self.page = notebook, notebook.page
        self.root = notebook.cell(name).locator(".rr-timeline")
        self.canvas = self.root.locator(".rr-scroller canvas")
        self.canvas.wait_for()

    def shows(self, text, where=".rr-clock"):
        """Wait until these words stand there."""
        self.root.locator(where).get_by_text(text).first.wait_for(state="attached", timeout=5000)

    def picture(self):
        """The pixels, once the canvas rests: a frame has passed without a new one."""
        frames = "requestAnimationFrame(() => requestAnimationFrame(() => done(c.toDataURL())))"
        return self.canvas.evaluate(f"c => new Promise(done => {frames})")

    def differs_from(self, before):
        """Wait until the pixels do."""
        arguments = [self.canvas.element_handle(), before]
        self.page.wait_for_function("([canvas, before]) => canvas.toDataURL() !== before", arg=arguments)

    def move_to(self, x, y):
        """The pointer over this point of the canvas, once the page rests; returns where that is on the page."""
        box = self.canvas.bounding_box()
        self.page.mouse.move(box["x"] + x, box["y"] + y)

    def tells_python(self, value):
        """Read it in Python until it is this: the browser tells the kernel 0.2 seconds later."""
        for _ in range(50):
            self.notebook.run("read")
            if value in self.notebook.result("read"):
                return
        assert value in self.notebook.result("read")


@pytest.fixture
def viewer(notebook):
    return lambda name="show": Viewer(notebook, name)


def test_keys_move_the_play_head_and_python_hears_of_it(viewer):
    shown = viewer()
    shown.shows("play head at 0 s")
    shown.canvas.focus()
    shown.canvas.press("Shift+ArrowRight")
    shown.shows("play head at 2.00 s")
    shown.shows("d · backward", ".rr-readout")
    shown.shows("Play head at 2.00 s, rank 0. predicted: computes d · backward", "[aria-live]")
    shown.canvas.press("End")
    shown.canvas.press("ArrowDown")
    shown.canvas.press("0")
    shown.canvas.press("0")  # in JupyterLab's command mode 0 0 asks to restart the kernel
    shown.shows("play head at 10.0 s")
    assert shown.page.locator(".jp-Dialog").count() == 0
    shown.tells_python("(10.0, 1, (0.0, 10.0))")


def test_python_moves_the_play_head(viewer):
    shown = viewer()
    shown.notebook.run("set")
    shown.shows("play head at 4.50 s")
    shown.shows("gradients 4.19 MB", ".rr-readout")


def test_the_wheel_zooms_only_a_focused_viewer(viewer):
    shown = viewer()
    shown.move_to(300, 60)
    before = shown.picture()
    shown.page.mouse.wheel(0, -120)
    shown.page.wait_for_timeout(300)  # nothing may happen, so there is nothing to wait for
    assert shown.picture() == before
    shown.canvas.focus()
    shown.move_to(300, 60)  # the page may have scrolled
    shown.page.mouse.wheel(0, -120)
    shown.differs_from(before)
    shown.tells_python("(0.0, 0, (0.5")


def test_a_drag_pans_what_is_zoomed(viewer):
    shown = viewer()
    shown.canvas.focus()
    shown.canvas.press("+")
    shown.tells_python("(0.0, 0, (0.0, 5.0))")
    shown.move_to(600, 60)
    shown.page.mouse.down()
    shown.move_to(92, 60)
    shown.page.mouse.up()
    shown.tells_python("(0.0, 0, (2.")


def test_the_pointer_shows_name_bytes_and_duration(viewer):
    shown = viewer()
    box = shown.canvas.bounding_box()
    x = 92 + 4.0 / 10 * (box["width"] - 92 - 20)  # 4 s: the first bucket is on its way
    shown.canvas.hover(position={"x": x, "y": 30 + 26 + 8})
    shown.shows("all_reduce 0", ".rr-card")
    shown.shows("rank 0 · communication · 2.10 MB", ".rr-card")
    shown.shows("starts at 3.00 s · lasts 2.00 s", ".rr-card")


def test_it_answers_while_the_kernel_is_busy(viewer):
    shown = viewer()
    shown.notebook.start("sleep")
    shown.canvas.focus()
    shown.canvas.press("End")
    shown.shows("play head at 10.0 s")
    shown.root.get_by_role("button", name="Zoom in").click()
    shown.shows("has ended", ".rr-readout")
    before = shown.picture()
    shown.canvas.focus()
    shown.move_to(300, 60)
    shown.page.mouse.wheel(0, -120)
    shown.differs_from(before)
    assert not shown.notebook.is_done("sleep")
    shown.notebook.interrupt("sleep")


def test_play_steps_from_edge_to_edge_for_those_who_want_no_motion(viewer):
    shown = viewer()
    shown.page.emulate_media(reduced_motion="reduce")
    shown.root.locator(".rr-clock").evaluate(WATCH)
    shown.root.get_by_role("button", name="Play", exact=True).click()
    shown.shows("play head at 5.00 s")
    shown.root.get_by_role("button", name="Pause").click()
    shown.page.emulate_media(reduced_motion="no-preference")
    seen = shown.page.evaluate("seen.filter(words => words !== 'play head at 0 s').slice(0, 4)")
    assert seen == [f"play head at {second}.00 s" for second in (2, 3, 4, 5)]


def test_it_follows_the_theme(viewer):
    shown = viewer()
    shown.notebook.screenshot("timeline-light.png", shown.root)
    light = shown.picture()
    shown.notebook.theme("dark")
    shown.differs_from(light)
    shown.notebook.screenshot("timeline-dark.png", shown.root)


def test_sixteen_ranks_are_reached_by_keys_and_scroll(viewer):
    shown = viewer("many")
    shown.notebook.screenshot("timeline-16-light.png", shown.root)
    before = shown.picture()
    shown.canvas.focus()
    for _ in range(15):
        shown.canvas.press("ArrowDown")
    shown.shows("rank 15", ".rr-readout .rr-chosen")
    shown.differs_from(before)
    shown.canvas.press("Shift+ArrowRight")
    shown.shows("rank 15", "[aria-live]")
    chosen, box = (shown.root.locator(f".rr-readout{part}").bounding_box() for part in (" .rr-chosen", ""))
    assert box["y"] <= chosen["y"] and chosen["y"] + chosen["height"] <= box["y"] + box["height"] + 1
    light = shown.picture()
    shown.notebook.theme("dark")
    shown.differs_from(light)
    shown.notebook.screenshot("timeline-16-dark.png", shown.root)


def test_bad_input_is_an_alert(notebook):
    notebook.run("bad")
    alert = notebook.cell("bad").get_by_role("alert")
    alert.wait_for()
    assert "got no timeline" in alert.inner_text() and notebook.errors == {}
