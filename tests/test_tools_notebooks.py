"""Notebooks in the repository: executed in place, and tidied so that nothing of the machine stays."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools import run_notebooks, tidy_notebooks
from tools.tidy_notebooks import WIDGET_VIEW, machine_paths, tidied

# -- tools/tidy_notebooks.py -------------------------------------------------------------------------------------------
PICTURE = {"image/png": "aGk=", "text/plain": "a dial"}


def code(source="1", count=7, outputs=(), **metadata):
    return new_code_cell(source, execution_count=count, outputs=list(outputs), metadata=metadata)


def tidy_cell(*outputs, **changes):
    return tidied(new_notebook(cells=[code(outputs=outputs, **changes)])).cells[0]


def stream(text, name="stdout"):
    return new_output("stream", name=name, text=text)


def test_widget_views_go_and_the_picture_stays():
    cell = tidy_cell(new_output("display_data", data={WIDGET_VIEW: {"model_id": "1"}, **PICTURE}))
    assert cell.outputs[0].data == PICTURE


def test_pictures_and_html_stay_as_they_were():
    data = {"image/png": "aGk=\n", "image/svg+xml": "<svg>µ</svg>", "text/html": "<b>本章要点</b>"}
    assert tidy_cell(new_output("display_data", data=data)).outputs[0].data == data


def test_an_output_with_nothing_left_goes():
    assert tidy_cell(new_output("display_data", data={WIDGET_VIEW: {"model_id": "1"}})).outputs == []


def test_notebook_metadata_is_the_same_for_everyone():
    kernel = {"name": "my-venv", "display_name": "Mine"}
    info = {"name": "python", "version": "3.11.7"}
    mine = new_notebook(metadata={"widgets": {"state": 1}, "kernelspec": kernel, "language_info": info})
    assert set(tidied(mine).metadata) == {"kernelspec", "language_info"}
    assert tidied(mine).metadata.kernelspec.name == "python3"
    assert "version" not in tidied(mine).metadata.language_info


def test_cell_metadata_keeps_tags_and_nbgrader_and_drops_timing():
    timing = {"iopub.status.busy": "now"}
    cell = tidy_cell(tags=["predict"], nbgrader={"grade": True}, execution=timing, collapsed=False)
    assert cell.metadata == {"tags": ["predict"], "nbgrader": {"grade": True}}


def test_execution_counts_run_from_one_and_unexecuted_cells_have_none():
    result = new_output("execute_result", data={"text/plain": "1"}, execution_count=9)
    cells = tidied(new_notebook(cells=[code(count=9, outputs=[result]), code(count=None), code(count=12)])).cells
    assert [cell.execution_count for cell in cells] == [1, None, 2]
    assert cells[0].outputs[0].execution_count == 1


def test_streams_split_by_chance_are_joined_and_stderr_stays_apart():
    outputs = tidy_cell(stream("a\n"), stream("b\n"), stream("warning\n", "stderr")).outputs
    assert [output.text for output in outputs] == ["a\nb\n", "warning\n"]


def test_a_named_cell_keeps_its_id_and_a_machine_made_one_follows_the_source():
    cells = [new_markdown_cell("x", id="predict-bytes"), new_markdown_cell("y"), new_markdown_cell("y")]
    first, second, third = (cell.id for cell in tidied(new_notebook(cells=cells)).cells)
    again = [new_markdown_cell("x", id="predict-bytes"), new_markdown_cell("y"), new_markdown_cell("y")]
    assert first == "predict-bytes"
    assert third == f"{second}-2"
    assert [cell.id for cell in tidied(new_notebook(cells=again)).cells] == [first, second, third]


def test_tidying_twice_is_tidying_once():
    once = tidied(new_notebook(cells=[code(outputs=[stream(f"{Path.home()}/x\n")]), new_markdown_cell("y")]))
    assert nbformat.writes(tidied(once)) == nbformat.writes(once)


@pytest.mark.parametrize(
    "text, short",
    [
        (f"{tidy_notebooks.ROOT}/helpers/ranks/live.py:3", "helpers/ranks/live.py:3"),
        ("/tmp/ipykernel_123/456.py:2", "cell:2"),
        ("/opt/venv/lib/python3.11/site-packages/torch/x.py", "site-packages/torch/x.py"),
        ("/usr/lib/python3.11/threading.py", "python/threading.py"),
        (f"{Path.home()}/data", "~/data"),
    ],
)
def test_paths_of_this_machine_become_short(text, short):
    cell = tidy_cell(stream(text), new_output("display_data", data={"text/html": f"<b>{text}</b>"}))
    assert cell.outputs[0].text == short
    assert cell.outputs[1].data["text/html"] == f"<b>{short}</b>"


def test_what_cannot_be_shortened_is_reported_with_its_cell():
    notebook = tidied(new_notebook(cells=[code(outputs=[stream("log in /mnt/scratch/run.log")])]))
    assert machine_paths(notebook) == ["cell 0: /mnt/scratch/run.log"]


@pytest.mark.parametrize("text", ["2/3 of it", "https://host/home/page", "a/work/b", "/dev/shm is small", "GB/s"])
def test_ordinary_slashes_are_no_paths(text):
    assert machine_paths(new_notebook(cells=[code(outputs=[stream(text)])])) == []


def test_check_reports_and_changes_nothing_and_tidying_satisfies_it(tmp_path, capsys):
    path = tmp_path / "a.ipynb"
    path.write_text(nbformat.writes(new_notebook(cells=[code()])))
    before = path.read_text()
    assert tidy_notebooks.main(["--check", str(path)]) == 1
    assert path.read_text() == before
    assert tidy_notebooks.main([str(tmp_path)]) == 0
    assert path.read_text() != before
    assert tidy_notebooks.main(["--check", str(path)]) == 0
    capsys.readouterr()


def test_a_notebook_above_520_kb_is_refused_and_the_largest_cell_is_named(tmp_path, capsys):
    path = tmp_path / "a.ipynb"
    path.write_text(nbformat.writes(new_notebook(cells=[code(), code(outputs=[stream("x" * 510_000)])])))
    assert tidy_notebooks.main([str(path)]) == 0
    path.write_text(nbformat.writes(new_notebook(cells=[code(), code(outputs=[stream("x" * 530_000)])])))
    assert tidy_notebooks.main([str(path)]) == 1
    assert "531 kB are more than 520 kB; cell 1 has 530 kB of outputs" in capsys.readouterr().out
    assert tidy_notebooks.main(["--check", str(path)]) == 1


def test_a_file_that_is_no_notebook_is_a_sentence(tmp_path, capsys):
    (tmp_path / "a.ipynb").write_text("{")
    assert tidy_notebooks.main([str(tmp_path)]) == 1
    assert "not a notebook" in capsys.readouterr().out


# -- tools/run_notebooks.py --------------------------------------------------------------------------------------------
# jupyter_client and nbclient warn about their own event loops on the way; the course does not depend on it.
runs_kernel = pytest.mark.filterwarnings("default")


def write_notebook(path, *sources):
    path.write_text(nbformat.writes(new_notebook(cells=[new_code_cell(source) for source in sources])))
    return path


@runs_kernel
def test_a_notebook_is_executed_saved_tidy_and_timed(tmp_path, capsys):
    path = write_notebook(tmp_path / "a.ipynb", "x = 20", "x + 1")
    assert run_notebooks.main([str(path)]) == 0
    saved = nbformat.read(path, as_version=4)
    assert saved.cells[1].outputs[0].data["text/plain"] == "21"
    assert "execution" not in saved.cells[0].metadata
    assert saved.metadata.kernelspec.name == "python3"
    assert "a.ipynb: " in capsys.readouterr().out


@runs_kernel
def test_a_failing_notebook_is_named_and_left_as_it_was(tmp_path, capsys):
    path = write_notebook(tmp_path / "a.ipynb", "1 / 0")
    before = path.read_text()
    assert run_notebooks.main([str(path)]) == 1
    assert path.read_text() == before
    assert "ZeroDivisionError" in capsys.readouterr().out
