"""What Jupyter asks of the course by itself: installed where every server and kernel of this environment looks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from helpers.learner.hooks import FOLDED, OURS, WIDGET_VIEW, drop_views

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(path.relative_to(ROOT) for path in (ROOT / "etc").rglob("rank_by_rank.*") if path.suffix != ".pyc")


@pytest.mark.parametrize("path", FILES, ids=str)
def test_the_file_is_installed(path):
    """`pip install -e .` copies it, thanks to setup.py; `make` calls that when pyproject.toml has changed."""
    assert (Path(sys.prefix) / path).read_text() == (ROOT / path).read_text()


def test_both_are_there():
    assert [path.parts[1] for path in FILES] == ["ipython", "jupyter"]


def notebook(*outputs: dict) -> dict:
    return {"type": "notebook", "content": {"cells": [{"cell_type": "code", "outputs": list(outputs)}, {"source": ""}]}}


def test_a_saved_widget_keeps_what_can_be_shown_without_a_kernel():
    view = {WIDGET_VIEW: {"model_id": "0", OURS: True}}
    model = notebook({"data": view | {"text/plain": "x", "image/png": "…"}}, {"data": dict(view)}, {"text": "printed"})
    drop_views(model=model, path="x.ipynb", contents_manager=None)
    first, alone, printed = model["content"]["cells"][0]["outputs"]
    assert list(first["data"]) == ["text/plain", "image/png"]
    assert alone == {"data": view} and printed == {"text": "printed"}


def test_a_result_that_was_not_guessed_yet_is_not_told_by_the_saved_file():
    view = {"model_id": "0", OURS: True, FOLDED: "Your guess first."}
    model = notebook({"data": {WIDGET_VIEW: view, "image/png": "…"}})
    drop_views(model)
    assert model["content"]["cells"][0]["outputs"] == [{"data": {"text/plain": "Your guess first."}}]


@pytest.mark.parametrize("model", [{"type": "file", "content": "text"}, {"type": "notebook", "content": None}])
def test_what_is_no_notebook_is_left_alone(model):
    before = dict(model)
    drop_views(model)
    assert model == before


def test_a_widget_of_another_project_keeps_its_view():
    data = {WIDGET_VIEW: {"model_id": "0"}, "text/plain": "IntSlider(value=0)"}
    model = notebook({"data": dict(data)})
    drop_views(model)
    assert model["content"]["cells"][0]["outputs"] == [{"data": data}]


SHELL = """
import sys
loaded = []
class Shell:
    extension_manager = property(lambda self: self)
    load_extension = loaded.append
names = {"get_ipython": Shell}
exec(open(sys.argv[1]).read(), names)
print(loaded, [name for name in names if "rank" in name], any(name.startswith("helpers") for name in sys.modules))
"""
MARKS = {  # what lies in or above the kernel's folder -> whether the hooks are loaded
    "work/.laid.json": True,
    "helpers/learner/hooks.py": True,
    "helpers.py": False,  # another project, which has a module of the same name
    "00_start_here.ipynb": False,
}


@pytest.mark.parametrize("mark", MARKS)
def test_a_kernel_loads_the_hooks_in_a_folder_of_the_course_alone(mark, tmp_path):
    (tmp_path / mark).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / mark).write_text("")
    folder = tmp_path / "work" / "labs"
    folder.mkdir(parents=True)
    command = [sys.executable, "-c", SHELL, str(ROOT / "etc/ipython/startup/rank_by_rank.py")]
    told = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    assert told == f"{['helpers.learner.hooks'] if MARKS[mark] else []} [] False\n"
