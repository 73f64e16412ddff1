"""A notebook in a real browser, as a person meets it: open, run, turn a dial, look."""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from playwright.sync_api import Locator, TimeoutError

from tests.browser.desk import THEMES, VIEWPORT, Desk

PANEL = "window.jupyterapp.shell.currentWidget"
IS_READY = """path => {
    const panel = window.jupyterapp?.shell.currentWidget;
    return panel?.context?.path === path && panel.context.isReady && panel.sessionContext?.isReady
        && panel.sessionContext.session?.kernel?.status === "idle";
}"""
# Not awaited: the command returns at the first error, also one on purpose, while the cells below it still run.
RUN_ALL = f"""() => {{
    for (const cell of {PANEL}.content.widgets) if (cell.model.type === "code") cell.model.clearExecution();
    window.jupyterapp.commands.execute("notebook:run-all-cells");
}}"""
# Each look at the outputs copies them, and a chapter has megabytes, so it looks only while the kernel is idle.
HAS_RUN = f"""() => {{
    if ({PANEL}.sessionContext.session.kernel.status !== "idle") return false;
    const cells = {PANEL}.content.widgets.map(cell => cell.model).filter(model => model.type === "code");
    const code = cells.filter(model => model.sharedModel.source.trim());
    if (code.every(model => model.executionCount)) return true;
    const expected = model => (model.getMetadata("tags") ?? []).includes("raises-exception");
    const failed = model => model.sharedModel.outputs.some(output => output.output_type === "error");
    return code.some(model => !expected(model) && model.executionCount && failed(model));
}}"""
CELLS = f"() => {PANEL}.content.model.sharedModel.cells.map(cell => cell.toJSON())"
NODE = f"id => {PANEL}.content.widgets.find(cell => cell.model.id === id).node"
START = f"""id => {{
    const index = {PANEL}.content.widgets.findIndex(cell => cell.model.id === id);
    {PANEL}.content.activeCellIndex = index;
    {PANEL}.content.widgets[index].model.clearExecution();
    window.jupyterapp.commands.execute("notebook:run-cell");
}}"""
CLEAR = f"id => {PANEL}.content.widgets.find(cell => cell.model.id === id).model.clearExecution()"
ASK = f"""async expression => {{
    const given = {{code: "", silent: true, user_expressions: {{it: expression}}}};
    const reply = await {PANEL}.sessionContext.session.kernel.requestExecute(given).done;
    return reply.content.user_expressions.it;
}}"""
INTERRUPT = f"() => {PANEL}.sessionContext.session.kernel.interrupt()"
# Not the kernel's status: messages of widgets travel beside a running cell and set it to idle when they are done.
IS_DONE = f"id => {PANEL}.content.widgets.find(cell => cell.model.id === id).model.executionCount !== null"
DIFFERS = "([node, before]) => node.innerHTML !== before"
HEIGHT = f"() => Math.ceil({PANEL}.content.widgets.reduce((sum, cell) => sum + cell.node.offsetHeight + 10, 0))"
# One at a time: its kernel has ended before the next begins. What is not saved is not asked about.
OPEN = "path => window.jupyterapp.commands.execute('docmanager:open', {path, factory: 'Notebook'}).then(() => null)"
CLOSE = """async keep => {
    for (const panel of [...window.jupyterapp.shell.widgets("main")].filter(one => one.context?.path !== keep)) {
        await panel.sessionContext?.ready;  // a kernel that still starts would find its notebook gone
        await panel.sessionContext?.shutdown();
        panel.dispose();
    }
}"""


@contextmanager
def opened(desk: Desk, path: str) -> Iterator[Notebook]:
    """A Notebook, closed afterwards; AssertionError if it has a complaint then."""
    notebook = Notebook(desk, path)
    try:
        yield notebook
    finally:
        complaints = notebook.close()
    assert not complaints, "\n".join(complaints)


class Notebook:
    """The notebook on the desk; there is one at a time. `close()` ends its kernel and returns the desk's complaints."""

    def __init__(self, desk: Desk, path: str) -> None:
        self.desk, self.page, self.path = desk, desk.page, path
        self.page.evaluate(OPEN, path)
        self.page.wait_for_function(IS_READY, arg=path, timeout=60_000)
        self.theme("light")

    def theme(self, name: str) -> None:
        self.desk.theme(name)

    def close(self) -> list[str]:
        found = self.desk.take_complaints()
        self.page.evaluate(CLOSE, None)
        self.desk.take_complaints()
        return found

    def come_back(self) -> None:
        """Close what was opened from here."""
        self.page.evaluate(CLOSE, self.path)
        self.page.wait_for_function(IS_READY, arg=self.path)

    def run_all(self, limit: float = 120) -> None:
        """Run every cell; returns when all have run, an unexpected error came, or `limit` seconds have passed."""
        self.page.evaluate(RUN_ALL)
        with suppress(TimeoutError):  # `errors` and `not_run` say more about what went wrong
            self.page.wait_for_function(HAS_RUN, timeout=limit * 1000, polling=250)

    def run(self, name: str, limit: float = 60) -> str:
        """Run the cell with this id to its end; returns what it printed. TimeoutError after `limit` seconds."""
        self.page.evaluate(START, name)
        self.wait(name, limit)
        return self.printed(name)

    def start(self, name: str) -> None:
        """Start the cell with this id; returns when it has printed something."""
        self.page.evaluate(START, name)
        self.cell(name).locator(".jp-OutputArea-output").first.wait_for()

    def interrupt(self, name: str, limit: float = 30) -> None:
        """End the cell with this id, which is running; what it says of that is no output to keep."""
        self.page.evaluate(INTERRUPT)
        self.wait(name, limit)
        self.page.evaluate(CLEAR, name)

    def wait(self, name: str, limit: float = 60) -> None:
        """Returns when the cell with this id, which is running, has ended. TimeoutError after `limit` seconds."""
        self.page.wait_for_function(IS_DONE, arg=name, timeout=limit * 1000)

    def is_done(self, name: str) -> bool:
        return self.page.evaluate(IS_DONE, name)

    def ask(self, expression: str) -> Any:
        """The value of a Python expression in the kernel, which shows and counts nothing: what `literal_eval` reads."""
        found = self.page.evaluate(ASK, expression)
        assert found["status"] == "ok", found
        return literal_eval(found["data"]["text/plain"])

    def printed(self, name: str) -> str:
        return "".join("".join(output.get("text", "")) for output in self._outputs(name))

    def result(self, name: str) -> str:
        """The text of the last expression of the cell with this id."""
        return "".join(output["data"]["text/plain"] for output in self._outputs(name) if "data" in output)

    def _outputs(self, name: str) -> list[dict]:
        return next(cell for cell in self.cells if cell["id"] == name)["outputs"]

    @property
    def cells(self) -> list[dict]:
        """The cells as they would be saved now (nbformat 4)."""
        return self.page.evaluate(CELLS)

    @property
    def code_cells(self) -> list[dict]:
        return [cell for cell in self.cells if cell["cell_type"] == "code" and cell["source"].strip()]

    @property
    def errors(self) -> dict[str, list[str]]:
        """Cell id -> its errors, without those that the chapter raises on purpose."""
        found = {}
        for cell in self.code_cells:
            values = [output["evalue"] for output in cell["outputs"] if output["output_type"] == "error"]
            if values and "raises-exception" not in cell["metadata"].get("tags", []):
                found[cell["id"]] = values
        return found

    @property
    def not_run(self) -> list[str]:
        """Ids of code cells that have not run."""
        return [cell["id"] for cell in self.code_cells if not cell["execution_count"]]

    def cell(self, name: str) -> Locator:
        """The cell with this id, scrolled into view: JupyterLab draws a cell when it is looked at."""
        node = self.page.evaluate_handle(NODE, name).as_element()
        node.evaluate("(node, name) => { node.dataset.cellName = name; node.scrollIntoView({block: 'start'}); }", name)
        return self.page.locator(f'.jp-Cell[data-cell-name="{name}"]')

    def dial(self, description: str, within: Locator) -> Locator:
        """What takes the keyboard's focus of the widget with this description: a slider's handle, a list or a field."""
        return self._row(description, within).locator(".noUi-handle, select, input:not([type=hidden])").first

    def drag(self, description: str, within: Locator, steps: int = 100) -> None:
        """Pull the slider with this description by the mouse in `steps` moves to its far end; lets go there."""
        slider = self._row(description, within).locator(".noUi-base")
        slider.scroll_into_view_if_needed()
        handle, track = self.dial(description, within).bounding_box(), slider.bounding_box()
        mouse, middle = self.page.mouse, handle["y"] + handle["height"] / 2
        mouse.move(handle["x"] + handle["width"] / 2, middle)
        mouse.down()
        mouse.move(track["x"] + track["width"] + 20, middle, steps=steps)
        mouse.up()

    def reads(self, description: str, within: Locator) -> str:
        """What stands beside the slider with this description."""
        return self._row(description, within).locator(".widget-readout").inner_text()

    def _row(self, description: str, within: Locator) -> Locator:
        label = self.page.locator("label", has_text=re.compile(rf"^{re.escape(description)}$"))
        return within.locator(".widget-inline-hbox").filter(has=label)

    def press(self, dial: Locator, keys: str, picture: Locator) -> str:
        """Press `keys` on `dial`, wait until `picture` differs, and return its html; AssertionError if it stays."""
        before = picture.inner_html()
        dial.focus()
        for key in keys.split():
            self.page.keyboard.press(key)
        try:
            self.page.wait_for_function(DIFFERS, arg=[picture.element_handle(), before], timeout=60_000, polling=20)
        except TimeoutError:
            focus = self.page.evaluate("document.activeElement.outerHTML.slice(0, 200)")
            raise AssertionError(f"{keys} on {dial} leaves the picture; the focus is on {focus}") from None
        return picture.inner_html()

    def screenshot(self, name: str, of: Locator | None = None) -> None:
        """If the desk keeps pictures: a PNG of `of`, or of the whole notebook; the window is made high enough."""
        if self.desk.pictures is None:
            return
        height = self.page.evaluate(HEIGHT) if of is None else of.bounding_box()["height"]
        is_higher = height + 150 > VIEWPORT["height"]
        if is_higher:
            self.page.set_viewport_size(VIEWPORT | {"height": min(int(height) + 150, 12_000)})
        shown = of or self.page.locator(".jp-NotebookPanel-notebook").first
        shown.screenshot(path=self.desk.pictures / name, animations="disabled")
        if is_higher:
            self.page.set_viewport_size(VIEWPORT)

    def pictures(self, name: str, of: Locator) -> None:
        """A screenshot in each theme, if the desk keeps pictures."""
        for theme in THEMES if self.desk.pictures else ():
            self.theme(theme)
            self.screenshot(f"{name}-{theme}.png", of)
