"""Memory, time and prints of a check have their limits, each with its sentence, and the next check works."""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from helpers.grading import grade, run_on_ranks, task_of
from helpers.grading.judging import inputs_by_rank
from helpers.grading.run_on_ranks import LocalRunner
from helpers.grading.safeguards import limits
from helpers.ranks.processes import pool
from tests.grading.safeguards.conftest import KEY, SIZE, said
from tests.grading.test_run_on_ranks import right

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as what a cell defines: a rank does not import this file


def in_pieces(model):
    kept = []
    while True:
        kept.append(bytearray(100_000))


def on_rank_1(model):
    if dist.get_rank() == 1:
        in_pieces(model)
    right(model)


MEMORY = {"in pieces": in_pieces, "on rank 1": on_rank_1, "of Python": lambda model: bytes(1_200_000_000)}
MEMORY |= {"at once": lambda model: torch.empty(1_200_000_000, dtype=torch.uint8)}


@pytest.mark.parametrize("function", MEMORY.values(), ids=MEMORY)
def test_more_than_a_gigabyte_is_refused(function, run, next_works):
    got = run(function)
    assert got.failure["kind"] == "memory"
    assert "asks for more than 1 GB of memory" in said(got)
    assert "test_limits.py line" in said(got)
    assert function is not on_rank_1 or got.failure["text"].startswith("rank 1: it asks")
    assert "申请的内存超过 1 GB" in got.failure["message"]["zh"]
    next_works()


def test_less_than_a_gigabyte_and_threads_are_let_be(run, own):
    def uses_much(model):
        torch.ones(150_000_000)
        threads = [threading.Thread(target=time.sleep, args=(0.05,)) for _ in range(30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        right(model)

    before = run(right) and own[:SIZE].pids
    assert run(uses_much).failure is None
    assert own[:SIZE].pids == before
    assert own[:SIZE].run(resource.getrlimit, resource.RLIMIT_DATA) == [resource.getrlimit(resource.RLIMIT_DATA)] * SIZE


def test_where_the_system_sets_no_limit_the_memory_is_looked_at(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(limits, "MAX_MEMORY", 100_000_000)
    with pytest.raises(limits.TooMuch), limits.limit_memory_and_files():
        in_pieces(None)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.fixture
def soon(monkeypatch):
    """A rank that does not hear an interrupt is ended soon, on a crowded machine too."""
    monkeypatch.setattr(pool, "load_per_core", lambda: 0.2)


def hears_nothing(model):
    for number in (signal.SIGPROF, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_PROF, 0)
    while True:
        pass


def swallows_everything(model):
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass


def prints_for_ever(model):
    while True:
        print("x" * 1000)


def prints_without_a_line(model):
    while True:
        sys.stdout.write("x")


@pytest.mark.parametrize("function", [hears_nothing, swallows_everything, prints_for_ever, prints_without_a_line])
def test_what_does_not_end_is_ended(function, run, next_works, soon):
    assert run(right).failure is None  # the first call of a rank imports the lab
    got = run(function, limit=0.5)
    assert got.failure["kind"] == "too_long"
    assert "does not end in time; when it was stopped:" in said(got)
    assert "test_limits.py line" in said(got)
    assert said(got).split("\n")[-2].endswith("0.5 s for the whole check")
    assert len(got.printed) < 5000
    next_works()


def prints_a_heap(model):
    right(model)
    print("x\n" * 50_000_000)


def test_a_heap_of_lines_is_cut_on_the_rank(run, next_works):
    got = run(prints_a_heap)
    assert got.failure is None
    assert len(got.printed) < 5000
    next_works()


def test_what_is_written_past_python_is_limited(run, next_works, own):
    def fills_the_disk(model):
        while True:
            os.write(1, b"x" * 10_000_000)

    assert "File too large" in said(run(fills_the_disk))
    assert max(os.path.getsize(os.path.join(own[:SIZE].folder, f"rank{r}.log")) for r in range(SIZE)) < 2_000_000
    next_works()


def test_a_check_as_a_whole_has_its_seconds(own, monkeypatch):
    monkeypatch.setattr(run_on_ranks, "load_per_core", lambda: 1.0)
    task = task_of(KEY)
    runner = LocalRunner(task, right, ranks=own)
    assert runner.seconds_left == task.seconds - run_on_ranks.SHUTDOWN_SECONDS == 8.0
    assert runner(inputs_by_rank(task, task.variations.cases(1), 1, 1), 1).failure is None
    assert 0.0 < runner.seconds_left < 8.0
    runner.seconds_left = 0.2

    def sleeps(model):
        time.sleep(100)

    runner.submitted = sleeps
    verdict = grade(KEY, runner=runner)
    assert "does not end in time" in verdict.text() and "10 s for the whole check" in verdict.text()
    assert "整个检查最多 10 s" in verdict.text("zh")
    assert runner.is_out_of_time
    late = runner(inputs_by_rank(task, task.variations.cases(1), 1, 1), 1)
    assert "the smaller worlds took all of its time" in late.failure["message"]["en"]
