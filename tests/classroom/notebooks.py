"""Notebooks as learners hand them in: a lab with some of its cells filled."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from helpers.classroom import cli, isolation, labs
from helpers.classroom.grade import ClassState, GradingSettings, grade_all, open_state
from helpers.classroom.isolation import ROOT
from helpers.classroom.results import GradedSubmission
from helpers.classroom.submissions import find_submissions
from tests.grading.submissions import TESTS

# What the command needs on a machine that cannot isolate a process.
ANY_ISOLATION = [cli.RISK] if isolation.strictest_available() == "plain" else []
CHEATS = sorted((TESTS / "cheats").glob("*.py"))
CELLS = {"03.start": "start", "03.average": "average", "03.buckets": "buckets", "03.sampler": "sampler"}
CELLS |= {"03.accumulate": "accumulate", "03.overlap": "overlap"}


def grade_command(folder: Path, out: Path, *options: str) -> list[str]:
    """The command that grades a folder of submissions, on any machine."""
    command = [sys.executable, "-m", "helpers", "grade", str(folder), "--out", str(out)]
    return [*command, *options, *ANY_ISOLATION]


def fields_of(cheat: Path) -> dict[str, str]:
    """TASK and SAYS of a cheat, which is read and not run."""
    lines = cheat.read_text().splitlines()
    return {line.split(" = ")[0]: line.split('"')[1] for line in lines if line.startswith(("TASK = ", "SAYS = "))}


def lab(name: str = "03_ddp", folder: str = "labs") -> dict[str, Any]:
    return json.loads((ROOT / folder / f"{name}.ipynb").read_text(encoding="utf-8"))


def grade_id_of(cell: Mapping[str, Any]) -> str | None:
    return cell["metadata"].get("nbgrader", {}).get("grade_id")


def cell_of(notebook: Mapping[str, Any], grade_id: str) -> dict[str, Any]:
    return next(cell for cell in notebook["cells"] if grade_id_of(cell) == grade_id)


def lab_of(key: str) -> labs.LabNotebook:
    """The lab with the task "03.average"."""
    return labs.load_lab(next(name for name in labs.lab_names() if name.startswith(key.partition(".")[0])))


def handed_in(answers: Mapping[str, str], *, only: bool = True, more: tuple[str, ...] = ()) -> dict[str, Any]:
    """The lab of these tasks with their source. only: the cells of the other tasks go. more: cells at the end."""
    own = lab_of(next(iter(answers)))
    notebook, cells = lab(own.name), {key: grade_id for grade_id, key in own.task_of_cell.items()}
    by_cell = {cells[key]: source for key, source in answers.items()}
    kept = []
    for cell in notebook["cells"]:
        grade_id = grade_id_of(cell)
        if grade_id in by_cell:
            cell["source"] = by_cell[grade_id]
        elif only and grade_id in cells.values():
            continue
        kept.append(cell)
    extra = [{"cell_type": "code", "metadata": {}, "outputs": [], "source": source} for source in more]
    return notebook | {"cells": kept + extra}


def graded(folder: Path, settings: GradingSettings, out: Path) -> tuple[list[GradedSubmission], ClassState]:
    """What the submissions of a folder earn, graded two at a time, and the state of the run."""
    state = open_state(out, seed=11)
    results = grade_all(find_submissions([folder]), settings, state, jobs=2, on_graded=lambda *_: None)
    return results, state


def write(path: Path, notebook: Mapping[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(notebook), encoding="utf-8")
    return path


AVERAGE = """
def average_gradients(model):
    for parameter in filter(lambda p: p.grad is not None, model.parameters()):
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
"""
BAD = {
    "syntax_error": {"03.average": "def average_gradients(model)\n    pass", "03.sampler": "x = ((("},
    "raises": {"03.average": "raise ValueError('no')", "03.start": "1 / 0\ndef start_equal(model): pass"},
    "endless_cell": {"03.start": "def start_equal(model): pass\nwhile True: pass", "03.average": AVERAGE},
    "endless_function": {"03.average": "def average_gradients(model):\n    while True: pass"},
    "prints_100_mb": {"03.average": AVERAGE + "    print('x' * 100_000_000)", "03.start": "print('y' * 100_000_000)"},
    "forks": {"03.average": "import os\ndef average_gradients(model):\n    while True: os.fork()"},
    "forks_in_a_cell": {"03.average": "import os\nwhile True: os.fork()"},
    "all_memory": {"03.average": "kept = []\ndef average_gradients(model):\n    while True: kept.append(b'x' * 10**8)"},
    "deletes_files": {"03.average": "import shutil\nshutil.rmtree('VICTIM', ignore_errors=True)\n" + AVERAGE},
    "exits_in_a_cell": {"03.start": "import os\nos._exit(0)", "03.average": AVERAGE},
    "silent": {"03.average": "import time\ndef average_gradients(model):\n    time.sleep(10**6)"},
}
