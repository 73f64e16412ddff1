"""Each chapter in a real JupyterLab: as saved it shows its pictures, then it runs from top to bottom."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.tidy_notebooks import WIDGET_VIEW

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CHAPTER_LIMIT = 270  # seconds, beside another worker; chapter 03, which starts torchrun, has 90 on a free machine
SHOWN = ".jp-OutputArea-output :is(.jupyter-widgets, .rr-timeline)"  # the viewer is an anywidget, without that class
DRAWN = ":is(svg, canvas, progress, button):visible"  # a quiz has buttons that wait for their turn
IS_DRAWN = "image => image.decode().then(() => image.naturalWidth > 0)"


@pytest.fixture(scope="module", params=CHAPTERS, ids=lambda path: path.stem)
def chapter(request) -> Path:
    return request.param


@pytest.fixture(scope="module")
def notebook(chapter, lab, browser):
    """The chapter in a tab, shared by its tests, which run in order: first as saved, then run."""
    from tests.browser.notebook import opened

    with opened(browser, lab, chapter.name) as notebook:
        yield notebook


def pictures(chapter: Path) -> dict[str, int]:
    """Cell id -> number of PNGs among its saved outputs."""
    cells = json.loads(chapter.read_text(encoding="utf-8"))["cells"]
    counts = {cell["id"]: sum("image/png" in out.get("data", {}) for out in cell.get("outputs", [])) for cell in cells}
    return {name: count for name, count in counts.items() if count}


def test_a_saved_chapter_shows_its_pictures_when_opened_again(chapter, notebook, screenshots):
    for name, count in pictures(chapter).items():
        images = notebook.cell(name).locator("img[src^='data:image/']")
        images.nth(count - 1).wait_for()
        assert images.count() == count, name
        assert all(image.evaluate(IS_DRAWN) for image in images.all()), name
    assert notebook.complaints == []
    notebook.screenshot(screenshots / f"{chapter.stem}-saved.png")


def test_it_runs_from_top_to_bottom_and_shows_every_widget(chapter, notebook, screenshots):
    notebook.run_all(CHAPTER_LIMIT)
    assert notebook.errors == {}
    assert notebook.not_run == []
    for cell in notebook.code_cells:
        if any(WIDGET_VIEW in output.get("data", {}) for output in cell["outputs"]):
            shown = notebook.cell(cell["id"]).locator(SHOWN)
            shown.first.locator(DRAWN).first.wait_for()
            notebook.screenshot(screenshots / f"{chapter.stem}-{cell['id']}.png", notebook.cell(cell["id"]))
    notebook.screenshot(screenshots / f"{chapter.stem}.png")


def test_nbconverts_html_holds_the_pictures(chapter, tmp_path):
    command = [sys.executable, "-m", "nbconvert", "--to", "html", "--output-dir", str(tmp_path), str(chapter)]
    subprocess.run(command, check=True, capture_output=True, timeout=100)
    html = (tmp_path / f"{chapter.stem}.html").read_text(encoding="utf-8")
    images = html.count('src="data:image/')  # nbconvert takes the SVG where there is one beside the PNG
    assert images == sum(pictures(chapter).values()) > 0
    assert "model not found" not in html
