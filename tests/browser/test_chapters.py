"""Each chapter in a real JupyterLab: as saved it shows its pictures, then one run shows its widgets and its outputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.saved_outputs import differences
from tools.tidy_notebooks import WIDGET_VIEW

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CHAPTER_LIMIT = 700  # seconds; chapter 03 has 90 on a free machine, and 270 beside eight other people's tests
SHOWN = ".jp-OutputArea-output :is(.jupyter-widgets, .rr-timeline)"  # the viewer is an anywidget, without that class
# A quiz has buttons, and who has not guessed reads a sentence.
DRAWN = ":is(svg, canvas, progress, button, p[aria-live]):visible"
# In the kernel, where ipywidgets keeps all views: what is wrongly asked, and what did not come out as declared.
WRONG = """[said for one in __import__("gc").get_objects() if type(one).__name__ in ("GuessView", "RevealView")
 if (said := one.question.wrong if type(one).__name__ == "GuessView" else one.wrong)]"""
IS_DRAWN = "image => image.decode().then(() => image.naturalWidth > 0)"


@pytest.fixture(scope="module", params=CHAPTERS, ids=lambda path: path.stem)
def chapter(request) -> Path:
    return request.param


@pytest.fixture(scope="module")
def notebook(chapter, desk):
    """The learner's copy of the chapter, as saved."""
    from tests.browser.notebook import opened

    with opened(desk, chapter.name) as notebook:
        yield notebook


@pytest.fixture(scope="module")
def ran(notebook):
    """The chapter after one run from top to bottom, which serves all tests from here on."""
    notebook.run_all(CHAPTER_LIMIT)
    return notebook


def pictures(chapter: Path) -> dict[str, int]:
    """Cell id -> number of PNGs among its saved outputs."""
    cells = json.loads(chapter.read_text(encoding="utf-8"))["cells"]
    counts = {cell["id"]: sum("image/png" in out.get("data", {}) for out in cell.get("outputs", [])) for cell in cells}
    return {name: count for name, count in counts.items() if count}


def test_a_saved_chapter_shows_its_pictures_when_opened_again(chapter, notebook):
    for name, count in pictures(chapter).items():
        images = notebook.cell(name).locator("img[src^='data:image/']")
        images.nth(count - 1).wait_for()
        assert images.count() == count, name
        assert all(image.evaluate(IS_DRAWN) for image in images.all()), name
    assert notebook.desk.complaints == []
    notebook.screenshot(f"{chapter.stem}-saved.png")


def test_it_runs_from_top_to_bottom_and_shows_every_widget(chapter, ran):
    assert ran.errors == {}
    assert ran.not_run == []
    for cell in ran.code_cells:
        if any(WIDGET_VIEW in output.get("data", {}) for output in cell["outputs"]):
            shown = ran.cell(cell["id"]).locator(SHOWN)
            shown.first.locator(DRAWN).first.wait_for()
            ran.screenshot(f"{chapter.stem}-{cell['id']}.png", ran.cell(cell["id"]))
    ran.screenshot(f"{chapter.stem}.png")


def test_every_guess_is_well_asked_and_came_out_as_declared(ran):
    assert ran.ask(WRONG) == []


def test_its_outputs_are_the_saved_ones(chapter, ran, request):
    if found := differences(request.session, chapter, ran.cells):
        pytest.fail("\n\n".join(found), pytrace=False)
