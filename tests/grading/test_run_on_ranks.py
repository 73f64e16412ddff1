"""Whatever a learner submits, a check ends with a sentence, without internals."""

from __future__ import annotations

import os
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist

from helpers.grading import grade, run_on_ranks, task_of
from helpers.grading.judging import inputs_by_rank
from helpers.grading.run_on_ranks import LocalRunner
from helpers.grading.safeguards.limits import TooLong, processor_limit
from tests.ranks.processes.test_messages import hears_nothing_from_now_on

KEY = "03.average"


def right(model):
    for parameter in filter(lambda p: p.grad is not None, model.parameters()):
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def not_written(model):
    raise NotImplementedError()


def raises(model):
    return model.layers


def never_ends(model):
    while True:
        try:
            pass
        except Exception:
            pass


def one_rank_stays_away(model):
    if dist.get_rank() == 0:
        right(model)


def other_shapes(model):
    dist.all_reduce(torch.ones(1 + dist.get_rank()))


async def returns_a_coroutine(model):
    right(model)


def fails_on_one_rank(model):
    if dist.get_rank() == dist.get_world_size() - 1 == 1:
        raise ValueError("only here")
    right(model)


BAD = {
    "not_written": (not_written, "not written yet"),
    "exception": (raises, "'Sequential' object has no attribute 'layers'"),
    "exit": (lambda model: sys.exit(0), "SystemExit"),
    "died": (lambda model: os._exit(3), "exit code 3"),
    "too_long": (never_ends, "does not end in time"),
    "hang": (one_rank_stays_away, "rank 1 finished without calling the all_reduce that others wait for"),
    "mismatch": (other_shapes, "not issue the same operations"),
    "not_callable": (None, "wants average_gradients(model), but got None"),
    "async": (returns_a_coroutine, "is defined with `async def`"),
    "signature": (lambda: None, "calls average_gradients(model), but yours is average_gradients()"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_gets_a_sentence_and_the_next_check_works(kind, ranks):
    submitted, sentence = BAD[kind]
    verdict = grade(KEY, submitted, ranks=ranks)
    assert not verdict.passed
    assert verdict.shown.failure.kind == {"exit": "exception"}.get(kind, kind)
    assert sentence in verdict.text()
    assert " run_on_ranks.py" not in verdict.text() and "variables are kept" not in verdict.text()
    assert verdict.text("zh") != verdict.text("en")
    assert grade(KEY, right, ranks=ranks).passed


def test_a_function_where_a_class_is_asked_for_and_an_object_get_a_sentence(ranks):
    def LossScaler(scale, growth_interval):  # noqa: N802
        return None

    assert "but `LossScaler` is a function" in grade("04.scaler", LossScaler, ranks=ranks).text("en")
    assert "but got int object, which cannot be called" in grade("04.scaler", 3, ranks=ranks).text("en")


def test_larger_worlds_are_not_tried_after_trouble(ranks):
    verdict = grade(KEY, fails_on_one_rank, ranks=ranks)
    assert [one.size for one in verdict.results] == [1, 2]
    assert verdict.untried_sizes == (3, 4, 5)
    assert "rank 1 raised ValueError: only here" in verdict.text()
    assert "passed: 1 rank; failed: 2 ranks; not tried: 3, 4 and 5 ranks" in verdict.text()


def test_a_sleeping_rank_ends_by_the_wall_clock(ranks):
    task = task_of(KEY)
    runner = LocalRunner(task, lambda model: time.sleep(1000), ranks=ranks, limit=0.5)
    run = runner(inputs_by_rank(task, task.variations.cases(1)[:1], 1, 1), 1)
    assert run.failure["kind"] == "too_long"
    assert "test_run_on_ranks.py" in run.failure["text"]
    assert ranks[:1].timeout == 120, "the limit of a check is not left behind"


def test_the_limit_grows_on_a_crowded_machine(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.5, 0, 0))
    task = task_of(KEY)
    assert run_on_ranks.wall_seconds(task) == task.seconds - run_on_ranks.SHUTDOWN_SECONDS
    monkeypatch.setattr(os, "getloadavg", lambda: (16.0, 0, 0))
    assert run_on_ranks.wall_seconds(task) == 8 * (task.seconds - run_on_ranks.SHUTDOWN_SECONDS)


def test_waiting_takes_no_processor_time_and_computing_does():
    with processor_limit(0.05):
        time.sleep(0.2)
    with pytest.raises(TooLong), processor_limit(0.05):
        never_ends(None)


def test_what_cannot_travel_is_named(ranks):
    lock = threading.Lock()

    def holds_a_lock(model):
        return lock

    verdict = grade(KEY, holds_a_lock, ranks=ranks)
    assert verdict.shown.failure.kind == "cannot_send"
    assert "`lock`" in verdict.text()


def test_prints_are_kept_and_cut(ranks, capsys):
    def chatty(model):
        right(model)
        print("x" * 10_000_000)

    verdict = grade(KEY, chatty, ranks=ranks)
    assert verdict.passed
    assert len(verdict.printed) < 5000
    assert "more characters" in verdict.printed
    assert capsys.readouterr().out == ""


def test_the_learners_ranks_stay_current(ranks, monkeypatch):
    from helpers.ranks import live

    monkeypatch.setattr(run_on_ranks, "_ranks", None)
    before = live.current()
    own = run_on_ranks.grader_ranks()
    try:
        assert own is not before
        assert live.current() is before
    finally:
        own.close()


def test_a_rank_that_has_not_heard_of_its_task_is_no_fault_of_the_answer(ranks, caplog):
    caplog.set_level("CRITICAL", logger="helpers.ranks.board.report")
    ranks[:2].run(hears_nothing_from_now_on)
    task = task_of(KEY)
    run = LocalRunner(task, right, ranks=ranks, limit=4)(inputs_by_rank(task, task.variations.cases(1)[:1], 2, 1), 1)
    assert run.failure is None and len(run.outputs) == 2
