"""The ▶ path of a chapter runs alone, in a fresh kernel: its cells, in order, and no other."""

from __future__ import annotations

import time
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.notebooks.chapter import CHAPTERS, load, on_path, source, tags
from tests.notebooks.names import missing

CELL_LIMIT = 120  # seconds, beside another worker and its ranks
ENVIRONMENT = {"RANKS_UNATTENDED": "1", "RANKS_LANGUAGE": "en"}


def path_alone(chapter: Path) -> nbformat.NotebookNode:
    """The notebook without the cells that its headings leave off the path."""
    notebook = nbformat.read(chapter, as_version=4)
    path = on_path(notebook.cells)
    notebook.cells = [cell for place, cell in enumerate(notebook.cells) if place in path]
    return notebook


def run(notebook: nbformat.NotebookNode, folder: Path) -> list[str]:
    """Run it in a fresh kernel; what failed and was not meant to, a sentence each."""
    client = NotebookClient(
        notebook,
        timeout=CELL_LIMIT,
        kernel_name="python3",
        allow_errors=True,
        store_widget_state=False,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()
    return [
        f"{cell.id}: {output.ename}: {output.evalue[:300]}"
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.output_type == "error" and not {"raises-exception", "nbval-raises-exception"} & tags(cell)
    ]


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_the_path_runs_from_a_fresh_kernel(chapter, tmp_path, monkeypatch):
    for name, value in {**ENVIRONMENT, "HOME": str(tmp_path), "RANKS_HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    began = time.perf_counter()
    assert run(path_alone(chapter), chapter.parent) == []
    print(f"{chapter.stem}: {time.perf_counter() - began:.1f} s")


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_no_cell_of_the_path_uses_a_name_from_off_the_path(chapter):
    cells = load(chapter)
    tagged = {place for place, cell in enumerate(cells) if "path" in tags(cell)}
    assert missing(cells, tagged) == {}


def cell(name: str, text: str) -> dict:
    return {"cell_type": "code", "id": name, "metadata": {}, "source": text}


def test_a_name_that_is_missing_is_found():
    cells = [
        cell("a", "from x import Link as L, y\n%matplotlib inline"),
        cell("b", "def f(n):\n    return n + L"),
        cell("c", "ranks = y"),
        cell("d", "f(ranks)"),
        cell("e", "%%ranks\nranks"),
        cell("f", "ranks = 1"),
        cell("g", "ranks"),
    ]
    assert missing(cells, {0, 1, 2, 3, 4, 5, 6}) == {}
    assert missing(cells, {1, 3, 4, 5, 6}) == {"L": "b", "ranks": "d"}


def test_a_cell_that_fails_when_the_path_runs_is_named(tmp_path):
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(text, id=text[:1]) for text in ("gone", "1 + 1")]
    assert [sentence[:13] for sentence in run(notebook, tmp_path)] == ["g: NameError:"]
    assert source(notebook.cells[1]) == "1 + 1" and notebook.cells[1].outputs
