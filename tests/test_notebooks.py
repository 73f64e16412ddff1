"""The form of the saved notebooks; the shape of those in stations: tests/notebooks/.

That their outputs come out again: tests/browser/test_chapters.py, or nbval.
"""

import re
from pathlib import Path

import pytest
from nbconvert import HTMLExporter

from tests.notebooks.chapter import CHAPTERS, PAGES, REFERENCE, load, source
from tools import tidy_notebooks

EXPECTED_ERRORS = {"raises-exception", "nbval-raises-exception"}
MAX_CELLS, MAX_CODE_LINES = 75, 25  # of a page to look things up in; tests/notebooks/shape.py has those of a chapter


@pytest.fixture(params=PAGES, ids=lambda path: path.stem)
def chapter(request) -> Path:
    return request.param


@pytest.fixture
def cells(chapter) -> list[dict]:
    return load(chapter)


def code_cells(cells: list[dict]) -> list[dict]:
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_it_is_tidy(chapter):
    assert tidy_notebooks.tidy_file(chapter, check=True) == []


@pytest.mark.parametrize("chapter", [page for page in PAGES if page.stem in REFERENCE], indirect=True)
def test_a_page_to_look_things_up_in_is_short_and_has_its_name(chapter, cells):
    assert len(cells) <= MAX_CELLS
    assert re.match(rf"# {chapter.stem.capitalize().replace('_', ' ')}\b", source(cells[0]))
    read = [cell for cell in code_cells(cells) if not cell["metadata"].get("jupyter", {}).get("source_hidden")]
    assert not [cell["id"] for cell in read if source(cell).count("\n") + 1 > MAX_CODE_LINES]


def test_it_is_saved_executed_from_top_to_bottom(cells):
    code = [cell for cell in code_cells(cells) if source(cell).strip()]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert any(cell["outputs"] for cell in code)


def test_an_error_is_shown_only_where_the_chapter_breaks_something_on_purpose(cells):
    failing = [
        cell["id"]
        for cell in code_cells(cells)
        if any(output["output_type"] == "error" for output in cell["outputs"])
        and not EXPECTED_ERRORS & set(cell["metadata"].get("tags", []))
    ]
    assert not failing


def test_nbconverts_html_holds_the_pictures(chapter, cells):
    html, _ = HTMLExporter().from_filename(str(chapter))
    pictures = sum("image/png" in output.get("data", {}) for cell in code_cells(cells) for output in cell["outputs"])
    assert html.count('src="data:image/') == pictures > 0  # nbconvert takes the SVG where there is one beside the PNG
    assert "model not found" not in html


def test_no_cell_waits_for_a_keyboard(cells):
    assert not [cell["id"] for cell in code_cells(cells) if re.search(r"\binput\(", source(cell))]


def test_there_are_chapters_and_the_first_one_is_the_start():
    assert CHAPTERS
    assert CHAPTERS[0].name == "00_start_here.ipynb"
