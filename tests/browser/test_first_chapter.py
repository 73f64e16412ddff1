"""A learner's first minutes: chapter 00 opens in JupyterLab, runs from top to bottom, and shows no broken widget."""

from __future__ import annotations

import contextlib

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(300)]

IS_READY = """() => {
    const panel = window.jupyterapp?.shell.currentWidget;
    return panel?.sessionContext?.isReady && panel.sessionContext.session?.kernel?.status === "idle";
}"""
RUN_ALL = """async () => { await window.jupyterapp.commands.execute("notebook:run-all-cells"); }"""
# The command returns at the first error, also one on purpose, while the cells below it still run.
HAS_RUN = """() => {
    const cells = window.jupyterapp.shell.currentWidget.content.model.sharedModel.cells;
    return cells.every(cell => cell.cell_type !== "code" || cell.execution_count);
}"""
CELLS = """() => window.jupyterapp.shell.currentWidget.content.model.sharedModel.cells.map(cell => cell.toJSON())"""


def test_chapter_00_runs_in_a_real_browser(lab, chromium):
    driver = pytest.importorskip("playwright.sync_api")
    page = chromium.new_page(viewport={"width": 1400, "height": 1000})
    page.goto(lab.format(path="00_start_here.ipynb"))
    page.wait_for_function(IS_READY, timeout=90_000)
    page.evaluate(RUN_ALL)
    with contextlib.suppress(driver.TimeoutError):  # the cells below say more about what went wrong
        page.wait_for_function(HAS_RUN, timeout=120_000)
    code = [cell for cell in page.evaluate(CELLS) if cell["cell_type"] == "code"]
    errors = {cell["id"]: [out["evalue"] for out in cell["outputs"] if out["output_type"] == "error"] for cell in code}
    on_purpose = {cell["id"] for cell in code if "raises-exception" in cell["metadata"].get("tags", [])}
    assert {name: words for name, words in errors.items() if words and name not in on_purpose} == {}
    assert [cell["id"] for cell in code if not cell["execution_count"]] == []
    text = page.inner_text("body").lower()
    assert "model not found" not in text
    assert "error displaying widget" not in text
