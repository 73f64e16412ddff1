"""What the web edition leaves out: the tests of its pages are tests/browser/test_book.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.links import CELL, CHAPTERS, Links, install_cell

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("links", [None, Links(repo="ada/ranks")])
def test_a_page_does_not_show_the_cell_that_installs_the_course(monkeypatch, links):
    pytest.importorskip("latex2mathml", reason="the packages of the web edition are not installed")
    for folder in ("tools", "tools/book"):
        monkeypatch.syspath_prepend(ROOT / folder)
    from notebook_page import page_of

    notebook = json.loads((ROOT / "notebooks" / f"{CHAPTERS[1]}.ipynb").read_text(encoding="utf-8"))
    (cell,) = (cell for cell in notebook["cells"] if cell["id"] == CELL)
    cell["source"] = install_cell(links)
    text = page_of(notebook, "en", "pictures").text
    assert "find_spec" not in text and "opening_scene" in text
