"""What the tests of the walls share: ranks of their own, and the next right answer after whatever was done."""

from __future__ import annotations

import contextlib
import os
import sys
import time

import cloudpickle
import psutil
import pytest

from helpers.grading import run_on_ranks, task_of
from helpers.grading.judging import grade_world, inputs_by_rank
from helpers.grading.run_on_ranks import LocalRunner
from helpers.grading.task import RunFailure
from helpers.grading.verdict import Verdict, WorldResult
from helpers.ranks import Ranks
from tests.grading.test_run_on_ranks import right

cloudpickle.register_pickle_by_value(sys.modules["tests.grading.test_run_on_ranks"])
KEY, SIZE = "03.average", 2
SLEEP = ["sleep", f"86399.{os.getpid()}"]  # known by its seconds


@pytest.fixture(scope="session")
def own():
    with Ranks(3, device="cpu", quiet=True, apart=run_on_ranks.GRADER_MODULE) as ranks:
        yield ranks


@pytest.fixture
def run(own):
    """run(function): the Run of a function on two ranks, in one case."""
    task = task_of(KEY)

    def on_two(function, limit=None, size=SIZE):
        inputs = inputs_by_rank(task, task.variations.cases(1)[:1], size, 1)
        return LocalRunner(task, function, ranks=own, limit=limit)(inputs, 1)

    return on_two


@pytest.fixture
def next_works(own):
    def passed():
        task = task_of(KEY)
        tried = grade_world(task, LocalRunner(task, right, ranks=own), SIZE, 1)
        assert tried.passed, tried
        assert_nobody_sleeps()

    return passed


def sleepers():
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            found += [one] if one.cmdline() == SLEEP and one.status() != psutil.STATUS_ZOMBIE else []
    return found


def assert_nobody_sleeps():
    until = time.monotonic() + 10
    while sleepers() and time.monotonic() < until:
        time.sleep(0.02)
    assert not sleepers()


def said(run):
    """The verdict on it, in both languages."""
    task, failure = task_of(KEY), RunFailure(**run.failure)
    verdict = Verdict.of(task, [WorldResult(size=SIZE, failure=failure)], seconds=1, seed=1)
    assert verdict.text("zh") != verdict.text("en")
    return verdict.text("en")
