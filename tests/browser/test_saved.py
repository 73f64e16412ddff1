"""The second day: a notebook that JupyterLab saved shows its pictures again, without the kernel that drew them."""

from __future__ import annotations

import json

from helpers.learner.hooks import WIDGET_VIEW

CELLS = {
    "explorer": "from helpers.widgets import DataParallelExplorer, QuizView, TimelineExplorer, guess, reveal\n"
    "DataParallelExplorer()",
    "timeline": """from helpers.records import Span, Timeline
step = Timeline(spans=[Span(rank=0, lane="compute", name="head", kind="forward", start=0, end=1)], source="recorded")
TimelineExplorer(step)""",
    "progress": "from helpers.grading import mock_view, progress_view\nprogress_view('03')",
    "quiz": "QuizView(seed=1)",
    "mock": "mock_view(seed=1)",
    "guess": "guess('How many bits has a byte', key='99.bits', path='progress.jsonl')",
    "folded": """from helpers.draw import topology_scene
bits = topology_scene('ring', 4)
reveal('99.bits', bits, predicted=8, path='progress.jsonl')""",
    "revealed": "guess('How many bits has a nibble', key='99.nibble', path='progress.jsonl').answer('4')\n"
    "reveal('99.nibble', bits, predicted=4, path='progress.jsonl')",
}
PICTURES = ("explorer", "timeline", "revealed")
TEXTS = {
    "progress": "Lab 03:",
    "quiz": "Cards in the bank:",
    "mock": "Five questions of 3 minutes",
    "guess": "[guess] 99.bits: How many bits has a byte",
    "folded": "Your guess first.",
}
IS_DRAWN = "image => image.decode().then(() => image.naturalWidth > 0)"
SAVE = "() => window.jupyterapp.commands.execute('docmanager:save').then(() => null)"


def test_what_was_run_and_saved_yesterday_shows_its_pictures_today(lab, desk):
    from tests.browser.notebook import opened

    path = lab.write("yesterday.ipynb", **CELLS)
    with opened(desk, path) as notebook:
        notebook.run_all()
        assert notebook.errors == {}
        live = {cell["id"] for cell in notebook.cells if any(WIDGET_VIEW in one["data"] for one in cell["outputs"])}
        assert live == CELLS.keys(), "the widgets that this test is about were not shown"
        notebook.page.evaluate(SAVE)
    assert WIDGET_VIEW not in (lab.work / path).read_text(encoding="utf-8")
    with opened(desk, path) as notebook:  # with another kernel, which knows no widget; a complaint fails
        for name in PICTURES:
            image = notebook.cell(name).locator("img[src^='data:image/']")
            image.wait_for()
            assert image.evaluate(IS_DRAWN), name
            notebook.screenshot(f"yesterday-{name}.png", notebook.cell(name))
        for name, text in TEXTS.items():
            notebook.cell(name).locator(".jp-OutputArea-output", has_text=text).first.wait_for()
            notebook.screenshot(f"yesterday-{name}.png", notebook.cell(name))
    outputs = {cell["id"]: cell["outputs"] for cell in json.loads((lab.work / path).read_text())["cells"]}
    assert "image/png" not in outputs["folded"][0]["data"], "the file tells what was not guessed yet"
