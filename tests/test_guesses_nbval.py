"""nbval, without a variable, says the same of a notebook whether or not its guesses were answered."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from helpers.learner import progress
from helpers.learner.guesses.questions import make_question
from helpers.learner.guesses.storage import store_guess
from tests.saved_outputs import differences

ROOT = Path(__file__).resolve().parent.parent
CELLS = (
    'from helpers.draw import topology_scene\n'
    'from helpers.widgets import guess, my_calibration, my_guesses, reveal, votes\n'
    'SCENE = topology_scene("ring", 4)',
    'guess("bytes per parameter", unit="B", kind="memory", key="made.bytes")',
    'reveal("made.bytes", SCENE, "Four and three.", predicted=7.0, measured=7)',
    'guess("do they shrink?", choices=["yes", "no"], kind="memory", key="made.shrink")',
    'reveal("made.shrink", predicted="no")',
    'guess("in order", order=["a", "b", "c"], kind="traffic", key="made.walk")',
    'reveal("made.walk", SCENE, predicted=["a", "b", "c"])',
    'guess("how long", between=True, unit="ms", kind="time", key="made.step")',
    'reveal("made.step", predicted=20.0, measured=21.3)',
    'my_guesses("made")',
    "my_calibration()",
    'votes("made.bytes")',
)  # fmt: skip
VALUES = {"made.bytes": 6.0, "made.shrink": "yes", "made.walk": ["c", "a", "b"], "made.step": [5.0, 8.0]}
ASKED = {
    "made.bytes": {},
    "made.shrink": {"choices": ["yes", "no"]},
    "made.walk": {"order": ["a", "b", "c"]},
    "made.step": {"between": True},
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """The notebook, executed where nobody is, as the course's are."""
    path = tmp_path_factory.mktemp("saved") / "made.ipynb"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    path.write_text(nbformat.writes(run(notebook, path.parent, RANKS_UNATTENDED="1")), encoding="utf-8")
    return path


def run(notebook, home: Path, **variables: str):
    client = NotebookClient(notebook, timeout=60, kernel_name="python3", store_widget_state=False)
    client.execute(cwd=str(ROOT), env=environment(home) | variables)
    return notebook


def environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RANKS_", "GUESS"))}
    return kept | {"HOME": str(home), "PYTHONPATH": str(ROOT), "RANKS_LANGUAGE": "en"}


def answer(home: Path, key: str) -> None:
    path = home / ".rank-by-rank" / "progress.jsonl"
    assert not store_guess(make_question(key, key=key, **ASKED[key]), VALUES[key], path=path)


def compared(notebook) -> list:
    """Outputs without the live views, which nbval passes over."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return [{name: data for name, data in one.get("data", one).items() if "widget-view" not in name} for one in outputs]


def says(request, path: Path, ran) -> list[str]:
    """What nbval's own comparison says of a run; the kinds of output that it passes over are compared as well."""
    assert compared(ran) == compared(nbformat.read(path, 4))
    return differences(request.session, path, ran.cells)


def test_nbval_finds_text_and_pictures_the_same_in_every_form(saved, tmp_path, request):
    """With no answer, with all four, and with GUESS=off; it was saved unattended. A run notes no answer."""
    noted = tmp_path / ".rank-by-rank" / "progress.jsonl"
    assert {name for one in compared(nbformat.read(saved, 4)) for name in one} == {"text/plain", "image/png"}
    assert says(request, saved, run(nbformat.read(saved, 4), tmp_path)) == []
    assert len(progress.read(noted).entries) == 0
    for key in ASKED:
        answer(tmp_path, key)
    for variables in ({}, {"GUESS": "off"}):
        assert says(request, saved, run(nbformat.read(saved, 4), tmp_path, **variables)) == []
    assert len(progress.read(noted).entries) == len(ASKED)
