"""Lab 03 as a learner meets it: a wrong answer, its hint, then the right ones, in a real JupyterLab."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
SOLUTION = {cell.id: cell.source for cell in nbformat.read(ROOT / "solutions" / "03_ddp.ipynb", 4).cells}
TASKS = [name.removesuffix("-check") for name in SOLUTION if name.endswith("-check")]
WRITE = """([id, text]) => window.jupyterapp.shell.currentWidget.content.widgets
    .find(cell => cell.model.id === id).model.sharedModel.setSource(text)"""
EDITABLE = """() => window.jupyterapp.shell.currentWidget.content.widgets
    .filter(cell => !cell.readOnly).map(cell => cell.model.id)"""


@pytest.fixture(scope="module")
def notebook(lab, desk):
    """The laid lab in a tab, its first cell run. What learners do in it goes to a progress file in the lab's folder."""
    from tests.browser.notebook import opened

    path = lab.work / "labs" / "03_ddp.ipynb"
    own = nbformat.read(path, 4)
    home = f'import os; os.environ["HOME"] = {str(lab.work)!r}'
    own.cells.insert(0, nbformat.v4.new_code_cell(home, id="home"))
    nbformat.write(own, path)
    with opened(desk, "labs/03_ddp.ipynb") as notebook:
        notebook.run("home")
        notebook.run("imports")
        yield notebook


def written(notebook, name: str, source: str) -> str:
    """Write `source` into the answer's cell, run it and its check; what the check shows."""
    notebook.page.evaluate(WRITE, [name, source])
    notebook.run(name)
    notebook.run(f"{name}-check")
    shown = notebook.cell(f"{name}-check").locator(".jp-OutputArea-output")
    shown.first.wait_for()
    return shown.last.inner_text()  # above it may stand the line that says what a slow check does


def test_only_answers_can_be_edited(notebook):
    assert set(notebook.page.evaluate(EDITABLE)) == {"home", *TASKS, "explain"}


def test_every_picture_is_drawn(notebook):
    for name in TASKS:
        notebook.run(f"{name}-picture")
        notebook.cell(f"{name}-picture").locator(".jp-OutputArea-output img[src^='data:image/']").first.wait_for()


def test_a_wrong_answer_gets_its_hint_and_no_traceback(notebook):
    lines = SOLUTION["average"].splitlines()
    shown = written(notebook, "average", "\n".join(line for line in lines if "/=" not in line))
    assert shown.startswith("03.average  not yet")
    assert "This is a sum over the ranks and not the mean." in " ".join(shown.split()) and "Traceback" not in shown
    notebook.screenshot("lab-03-not-yet.png", notebook.cell("average-check"))


def test_the_right_answers_pass(notebook):
    for name in TASKS:
        assert f"03.{name}  passed" in written(notebook, name, SOLUTION[name])
    notebook.screenshot("lab-03.png")


def test_the_rubric_shows_once_an_answer_in_words_is_written_and_saved(notebook):
    assert "no saved answer yet" in rubric_of(notebook)
    notebook.page.evaluate(WRITE, ["explain", "The mean of means weighs ranks, not examples."])
    notebook.page.evaluate("() => window.jupyterapp.shell.currentWidget.context.save()")
    assert "Rubric (3 points)" in rubric_of(notebook)


def rubric_of(notebook) -> str:
    notebook.run("rubric")
    shown = notebook.cell("rubric").locator(".jp-OutputArea-output")
    shown.first.wait_for()
    return shown.inner_text()
