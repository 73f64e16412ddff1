"""What a check starts is ended, and whom it ends is itself alone."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import time
from multiprocessing import get_context, util

import cloudpickle
import psutil
import pytest

from helpers.grading import run_on_ranks, task_of
from helpers.grading.task import JudgedWorld
from helpers.ranks import Ranks
from helpers.ranks.processes import process
from tests.grading.safeguards.conftest import KEY, SIZE, SLEEP, said
from tests.grading.test_run_on_ranks import right

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as what a cell defines: a rank does not import this file


REFUSED = {
    "a fork": (lambda model: os.fork(), "starts a process"),
    "a library's fork": (lambda model: get_context("fork").Process(target=print).start(), "starts a process"),
    "a program": (lambda model: subprocess.run(SLEEP), "starts a process"),
    "its parent": (lambda model: os.kill(os.getppid(), 9), "ends process "),
    "everybody": (lambda model: os.kill(-1, 9), "ends process -1, which is not its own"),
}


@pytest.mark.parametrize(("function", "deed"), REFUSED.values(), ids=REFUSED)
def test_processes_are_neither_started_nor_ended(function, deed, run, next_works):
    got = run(function)
    assert got.failure["kind"] == "refused"
    assert f"does what a check does not let it do:\n  ranks 0, 1: it {deed}" in said(got)
    next_works()


def forks_past_python(model):
    if ctypes.CDLL(None).fork() == 0:
        return
    right(model)


def leaves_a_process(model):
    right(model)
    util.spawnv_passfds(shutil.which("sleep").encode(), SLEEP, [])


def leaves_it_to_nobody(model):
    """Its parent ends at once, and it is in a session of its own."""
    right(model)
    util.spawnv_passfds(b"/bin/sh", ["sh", "-c", f"setsid {' '.join(SLEEP)} & sleep 0.1"], [])


@pytest.mark.parametrize("function", [forks_past_python, leaves_a_process, leaves_it_to_nobody])
def test_what_was_started_all_the_same_is_ended(function, run, next_works):
    got = run(function)
    assert got.failure is None
    task = task_of(KEY)
    case = task.variations.cases(1)[0]
    assert all(finding.ok for finding in task.judge(JudgedWorld.of(task.inputs(1, SIZE, case), got, case)))
    next_works()


def leaves_it_and_dies(model):
    leaves_it_to_nobody(model)
    os._exit(0)


def kills_its_parent_past_python(model):
    leaves_a_process(model)
    ctypes.CDLL(None).kill(os.getppid(), 9)
    time.sleep(100)


DEADLY = {
    "leaves a process": (leaves_it_and_dies, "exit code 0"),
    "kills its parent": (kills_its_parent_past_python, "died"),
    "kills itself": (lambda model: os.kill(os.getpid(), 9), "killed by SIGKILL"),
    "closes everything": (lambda model: os.closerange(3, 5000), "died"),
}


@pytest.mark.parametrize(("function", "end"), DEADLY.values(), ids=DEADLY)
def test_who_ends_the_process_ends_no_other(function, end, run, next_works):
    with Ranks(1, device="cpu", quiet=True) as learners:
        learners.cell("x = 41")
        zygote = process.zygote().process.pid
        got = run(function)
        assert got.failure["kind"] == "died"
        assert end in said(got)
        next_works()
        learners.cell("assert x == 41")
        assert process.zygote().process.pid == zygote


def test_every_world_comes_back_after_the_parent_was_killed(own):
    for size in (1, 3):
        own[:size].run(os.getpid)
    os.kill(process.zygote(run_on_ranks.GRADER_MODULE).process.pid, 9)
    psutil.wait_procs([psutil.Process(pid) for pid in own.pids if psutil.pid_exists(pid)], timeout=10)
    for size in (1, 2, 3):
        assert len(own[:size].run(os.getpid)) == size
