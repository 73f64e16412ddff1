"""Running notebooks in place: saved tidy when they pass, left as they were when they fail."""

from __future__ import annotations

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from tools import run_notebooks

# jupyter_client and nbclient warn about their own event loops on the way; the course does not depend on it.
pytestmark = pytest.mark.filterwarnings("default")


def notebook(path, *sources):
    path.write_text(nbformat.writes(new_notebook(cells=[new_code_cell(source) for source in sources])))
    return path


def test_a_notebook_is_executed_saved_tidy_and_timed(tmp_path, capsys):
    path = notebook(tmp_path / "a.ipynb", "x = 20", "x + 1")
    assert run_notebooks.main([str(path)]) == 0
    saved = nbformat.read(path, as_version=4)
    assert saved.cells[1].outputs[0].data["text/plain"] == "21"
    assert "execution" not in saved.cells[0].metadata
    assert saved.metadata.kernelspec.name == "python3"
    assert "a.ipynb: " in capsys.readouterr().out


def test_a_failing_notebook_is_named_and_left_as_it_was(tmp_path, capsys):
    path = notebook(tmp_path / "a.ipynb", "1 / 0")
    before = path.read_text()
    assert run_notebooks.main([str(path)]) == 1
    assert path.read_text() == before
    assert "ZeroDivisionError" in capsys.readouterr().out
