"""Checks outside the public tree: they replace public ones, add tasks, and work in the sandbox."""

from __future__ import annotations

import json
import sys

import pytest

from helpers.classroom import cli, labs
from helpers.grading import registry
from tests.classroom import notebooks

CHECKS = """
import torch
from helpers.grading import Task, Words
from helpers.grading.kit.comparisons import expect_equal

def make_inputs(rng, world_size):
    return [{"x": int(torch.randint(1, 100, (), generator=rng))} for _ in range(world_size)]

def run_submission(submitted, inputs, context):
    return {"y": submitted(inputs["x"])}

def judge(world):
    for rank, output in enumerate(world.outputs):
        yield expect_equal("twice x", 2 * world.inputs[rank]["x"], output["y"], rank=rank)

PARTS = {"make_inputs": make_inputs, "run_submission": run_submission, "judge": judge}
TASKS = (Task(key="03.hidden", signature="twice(x)", **PARTS, hints={}, world_sizes=(2,)),)
POINTS = {"03.hidden": 5}
"""


@pytest.fixture
def own_registry(monkeypatch):
    """What this test adds to the labs goes after it."""
    monkeypatch.setattr(registry, "_private", {})
    yield
    sys.modules.pop("helpers.grading.private_03", None)


@pytest.mark.timeout(300)
def test_a_hidden_task_is_graded_with_its_points_and_the_public_ones_stay(tmp_path, own_registry):
    checks, folder, out = tmp_path / "checks", tmp_path / "class", tmp_path / "out"
    checks.mkdir()
    (checks / "03_ddp.py").write_text(CHECKS)
    more = ("def twice(x):\n    return 2 * x",)
    notebooks.write(folder / "ada.ipynb", notebooks.handed_in({"03.average": notebooks.AVERAGE}, more=more))
    options = ["--out", out, "--checks", checks, "--lab", "03_ddp", "--seed", "3", *notebooks.ANY_ISOLATION]
    assert cli.main([str(one) for one in (folder, *options)]) == 0
    result = json.loads((out / "state.jsonl").read_text().splitlines()[1])
    points = {task["key"]: (task["state"], task["points"]) for task in result["tasks"]}
    assert points["03.hidden"] == ("passed", 5.0) and points["03.average"] == ("passed", 2.0), result


def test_a_folder_without_checks_is_told(tmp_path):
    with pytest.raises(ValueError, match="holds no checks"):
        labs.use_private_checks(str(tmp_path))
