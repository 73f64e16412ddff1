"""Checks outside the public tree: they replace public ones, add tasks, and work in the sandbox."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from helpers.grading.classroom import private
from tests.grading.classroom import notebooks

CHECKS = """
import torch
from helpers.grading import Hint, Task
from helpers.grading.judging import expect_equal

def make(rng, world_size):
    return [{"x": int(torch.randint(1, 100, (), generator=rng))} for _ in range(world_size)]

def act(submitted, inputs, trial):
    return {"y": submitted(inputs["x"])}

def judge(world):
    for rank, output in enumerate(world.outputs):
        yield expect_equal("twice x", 2 * world.inputs[rank]["x"], output["y"], rank=rank)

TASKS = (Task(key="03.hidden", signature="twice(x)", make=make, act=act, judge=judge, hints={}, world_sizes=(2,)),)
POINTS = {"03.hidden": 5}
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_hidden_task_is_graded_with_its_points_and_the_public_ones_stay(tmp_path):
    checks, folder, out = tmp_path / "checks", tmp_path / "class", tmp_path / "out"
    checks.mkdir()
    (checks / "03_ddp.py").write_text(CHECKS)
    more = ("def twice(x):\n    return 2 * x",)
    notebooks.write(folder / "ada.ipynb", notebooks.handed_in({"03.average": notebooks.AVERAGE}, more=more))
    command = [sys.executable, "-m", "helpers", "grade", str(folder), "--out", str(out), "--checks", str(checks)]
    done = subprocess.run([*command, "--lab", "03_ddp", "--seed", "3"], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    result = json.loads((out / "state.jsonl").read_text().splitlines()[1])
    points = {task["key"]: (task["state"], task["points"]) for task in result["tasks"]}
    assert points["03.hidden"] == ("passed", 5.0) and points["03.average"] == ("passed", 2.0), result


def test_a_folder_without_checks_is_told(tmp_path):
    with pytest.raises(ValueError, match="holds no checks"):
        private.use(str(tmp_path))
