"""Which labs there are, and how a lab and a task are found."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import grading
from helpers.classroom.allowed import why_forbidden
from helpers.grading import chapters_with_tasks, exercises_of, lab_of, labs, registry, task_of, tasks_of

ROOMS = {path.parent.name for path in Path(grading.__file__).parent.glob("*/hints.yaml")}


@pytest.fixture
def without_private_tasks(monkeypatch):
    """No teacher's own tasks, neither of another test before this one nor of this one after it."""
    monkeypatch.setattr(registry, "_private", {})


def test_every_folder_with_hints_is_listed():
    listed = {lab.topic: lab for lab in registry.public_labs().values()}
    assert listed.keys() == ROOMS
    assert all(importlib.import_module(f"helpers.grading.{topic}").LAB is lab for topic, lab in listed.items())


def test_a_lab_that_is_listed_is_found_with_what_it_forbids(without_private_tasks, monkeypatch):
    before = labs()
    tenth = registry.Lab(number="98", topic="tenth", tasks=("ten.TEN",), forbids=("torch.compile",))
    monkeypatch.setitem(registry.public_labs(), "98", tenth)
    assert labs() == [*before, "98"] and lab_of("98").name == "98_tenth"
    assert why_forbidden("torch.compile", "98") and not why_forbidden("torch.compile", "03")
    assert tasks_of("00") == {}  # its tasks are asked in the chapter alone
    for lab in ("99", ""):
        with pytest.raises(ValueError, match="there are 01, .*98"):
            tasks_of(lab)


def test_a_task_has_the_key_under_which_it_is_listed():
    """The key "03.average" is made of the lab's number and the variable AVERAGE, so that no other task is imported."""
    listed = [pair for number in chapters_with_tasks() for pair in {**tasks_of(number), **exercises_of(number)}.items()]
    assert all(key == task.key for key, task in listed)


def test_a_teachers_task_replaces_the_public_one_of_its_key(without_private_tasks):
    public, spare = tasks_of("03"), task_of("01.cost")
    registry.add_private_tasks("03", [spare])
    registry.add_private_tasks("99", [spare])
    assert list(tasks_of("03")) == [*public, "01.cost"] and lab_of("03").forbids
    assert list(tasks_of("99")) == ["01.cost"] and not why_forbidden("torch.nn.Linear", "99")
    registry.add_private_tasks("03", [spare])
    assert len(tasks_of("03")) == len(public) + 1


def test_a_record_brings_no_task():
    """A rule is read at once. That no answer stands beside a learner's code is in classroom/test_allowed.py."""
    code = """
import sys
from helpers.grading import lab_of, labs
assert all(lab_of(number).tasks for number in labs())
assert not [name for name in sys.modules if name.endswith(".hints")]
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# -- what a lab leaves to the learner --------------------------------------------------------------------------------
FORBIDDEN = {
    "06": "torch.distributed.pipelining.Schedule1F1B helpers.schedules helpers.parallel.pipeline",
    "07": "torch.distributed.tensor.parallel torch.distributed.nn.functional.all_reduce "
    "helpers.parallel.tensor_parallel helpers.parallel.tensor_parallel.conjugate",
    "08": "torch.distributed.optim.ZeroRedundancyOptimizer torch.distributed.fsdp.fully_shard helpers.parallel.zero "
    "torch.nn.parallel.DistributedDataParallel helpers.parallel.zero.flat_shards",
}
ALLOWED = {"06": "torch.distributed.isend", "07": "torch.distributed.all_reduce torch.nn.Linear"}
ALLOWED |= {"08": "torch.distributed.reduce_scatter"}


@pytest.mark.parametrize("lab", FORBIDDEN)
def test_what_the_lab_leaves_to_the_learner_is_forbidden(lab):
    assert not [name for name in FORBIDDEN[lab].split() if not why_forbidden(name, lab)]
    assert not [name for name in ALLOWED[lab].split() if why_forbidden(name, lab)]
