"""The form of the saved notebooks; the shape of those in stations: tests/notebooks/.

That their outputs come out again: tests/browser/test_chapters.py, or nbval.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from nbconvert import HTMLExporter

from tests.notebooks.chapter import CHAPTERS, PAGES, REFERENCE
from tools import tidy_notebooks

EXPECTED_ERRORS = {"raises-exception", "nbval-raises-exception"}
MAX_CELLS, MAX_REFERENCE_CELLS, MAX_CODE_LINES = 75, 75, 25


@pytest.fixture(params=PAGES, ids=lambda path: path.stem)
def chapter(request) -> Path:
    return request.param


@pytest.fixture
def cells(chapter) -> list[dict]:
    return json.loads(chapter.read_text(encoding="utf-8"))["cells"]


def source(cell: dict) -> str:
    return "".join(cell["source"])


def code_cells(cells: list[dict]) -> list[dict]:
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_it_is_tidy(chapter):
    assert tidy_notebooks.tidy_file(chapter, check=True) == []


def asks_only(cell: dict) -> bool:
    """A cell with nothing but a guess, which the limits do not count."""
    return cell["cell_type"] == "code" and source(cell).startswith("guess(")


def test_it_is_short(chapter, cells):
    most = MAX_REFERENCE_CELLS if chapter.stem in REFERENCE else MAX_CELLS
    assert sum(not asks_only(cell) for cell in cells) <= most
    read = [cell for cell in code_cells(cells) if not cell["metadata"].get("jupyter", {}).get("source_hidden")]
    long = [cell["id"] for cell in read if source(cell).count("\n") + 1 > MAX_CODE_LINES]
    assert not long, f"code cells of more than {MAX_CODE_LINES} lines: {long}"


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


@pytest.mark.parametrize("chapter", CHAPTERS, indirect=True, ids=lambda path: path.stem)
def test_it_has_a_short_path(chapter, cells):
    tagged = [cell for cell in cells if "path" in cell["metadata"].get("tags", [])]
    assert 5 <= len(tagged) < len(cells)


def test_it_opens_with_its_number_or_its_name_and_tells_its_main_points_in_chinese(chapter, cells):
    own = chapter.stem[:2] if chapter.stem[:2].isdigit() else chapter.stem.capitalize().replace("_", " ")
    assert re.match(rf"# {own}\b", source(cells[0]))
    assert chapter.stem in REFERENCE or any("本章要点" in source(cell) for cell in cells[len(cells) // 2 :])


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
