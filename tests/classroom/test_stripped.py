"""Where learners' code runs: nothing of the answers is in the process, and what ranks need still works."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from helpers.grading import lab_of
from helpers.grading import labs as numbers

START = """
import gc, json, os, sys, types
from helpers.classroom import nursery, stripped
nursery.preload()
gc.unfreeze()
for lab in sys.argv[1:]:
    if os.fork() == 0:
        stripped.strip(lab)
        gc.collect()
        left = [one for one in gc.get_objects() if type(one) is types.FunctionType]
        names = [f"{one.__module__}.{one.__qualname__}" for one in left if len(one.__globals__) > 12]
        print(json.dumps([lab, names, sorted(sys.modules)]), flush=True)
        os._exit(0)
    os.wait()
"""
ANSWERS = (
    "helpers.parallel",
    "helpers.collectives",
    "helpers.schedules",
    "helpers.predict",
    "helpers.quantities.costs",
)
ALPHABET = "helpers.schedules.actions"  # how an action is written, and no schedule
TOPICS = tuple(f"helpers.grading.{lab_of(number).topic}." for number in numbers())


@pytest.fixture(scope="module")
def left():
    """A lab to (functions that can still run, modules) in a process that was stripped for it."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", START, *numbers()], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return {lab: (names, modules) for lab, names, modules in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("lab", numbers())
def test_no_judge_no_reference_and_no_other_lab_is_left(lab, left):
    names, modules = left[lab]
    assert any(name.startswith("helpers.grading.acting.") for name in names)
    assert not [name for name in names if name.startswith(ANSWERS)]
    own = [name for name in names if name.startswith(TOPICS)]
    assert all(name.startswith(f"helpers.grading.{lab_of(lab).topic}.") and ".judge" not in name for name in own)
    assert not [name for name in names if name.startswith("helpers.grading.kit.judging")]
    assert not [name for name in modules if name.startswith(ANSWERS[:4]) and name != ALPHABET]
    assert len([name for name in modules if name.startswith("helpers.grading.") and name.endswith(".hints")]) <= 1
