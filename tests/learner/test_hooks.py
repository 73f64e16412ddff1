"""What Jupyter asks of the course by itself: installed where every server and kernel of this environment looks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from helpers.learner.hooks import FOLDED, WIDGET_VIEW, drop_views

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
    view = {WIDGET_VIEW: {"model_id": "0"}}
    model = notebook({"data": view | {"text/plain": "x", "image/png": "…"}}, {"data": dict(view)}, {"text": "printed"})
    drop_views(model=model, path="x.ipynb", contents_manager=None)
    first, alone, printed = model["content"]["cells"][0]["outputs"]
    assert list(first["data"]) == ["text/plain", "image/png"]
    assert alone == {"data": view} and printed == {"text": "printed"}


def test_a_result_that_was_not_guessed_yet_is_not_told_by_the_saved_file():
    model = notebook({"data": {WIDGET_VIEW: {"model_id": "0", FOLDED: "Your guess first."}, "image/png": "…"}})
    drop_views(model)
    assert model["content"]["cells"][0]["outputs"] == [{"data": {"text/plain": "Your guess first."}}]


@pytest.mark.parametrize("model", [{"type": "file", "content": "text"}, {"type": "notebook", "content": None}])
def test_what_is_no_notebook_is_left_alone(model):
    before = dict(model)
    drop_views(model)
    assert model == before
