"""Submissions, graded on the session's ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.grading import NotYet, Verdict, check, grade, mistakes_on_ranks, run_on_ranks, task_of
from helpers.grading.judging import grade_world
from helpers.grading.named_mistakes import with_mistakes
from helpers.grading.run_on_ranks import LocalRunner
from helpers.ranks import Ranks


@pytest.fixture(scope="session")
def ranks():
    """As many ranks as a check asks for."""
    with Ranks(run_on_ranks.NUM_RANKS, device="cpu", timeout=120, quiet=True, apart=run_on_ranks.GRADER_MODULE) as pool:
        yield pool


@pytest.fixture(autouse=True)
def time_to_name(monkeypatch):
    """On a busy machine a check gives up naming the mistake; these tests wait for the name."""
    monkeypatch.setattr(mistakes_on_ranks, "SECONDS", 60.0)


@pytest.fixture
def notes(tmp_path, ranks, monkeypatch):
    """The progress file of one test, whose checks run on the session's ranks."""
    monkeypatch.setattr(run_on_ranks, "_ranks", ranks)
    return tmp_path / "progress.jsonl"


@pytest.fixture
def refused(notes):
    """refused(submitted): what a check of 03.average raises."""

    def raised(submitted, **more) -> NotYet:
        with pytest.raises(NotYet) as caught:
            check("03.average", submitted, progress_file=notes, **more)
        return caught.value

    return raised


SEED = 1  # a test is not to depend on luck


@pytest.fixture
def graded(ranks):
    """graded(submission): the verdict on a mutant or a right answer."""

    def verdict(submission, *, seed: int = SEED) -> Verdict:
        return grade(submission.task, submission.names().get(task_of(submission.task).name), seed=seed, ranks=ranks)

    return verdict


ORDER = (3, 5, 2, 4, 1)  # of the worlds: on three ranks most mistakes show


@pytest.fixture
def failing(ranks, graded):
    """failing(submission, allowed): the verdict on a wrong answer, of no more worlds than it takes to tell.

    That is until it failed, if an allowed mistake alone explains that (None: none does); what ends otherwise is graded
    as a learner's check does, through all worlds in their order. The slow test of the mutants does so with each.
    """

    def verdict(submission, allowed, *, seed: int = SEED) -> Verdict:
        task, tried = task_of(submission.task), []
        runner = LocalRunner(task, submission.names().get(task.name), ranks=ranks)
        for size in sorted(task.world_sizes, key=ORDER.index):
            tried.append(grade_world(task, runner, size, seed))
            if not tried[-1].passed:
                break
        by_size = sorted(tried, key=lambda one: one.size)
        tried = with_mistakes(task, by_size, mistakes_on_ranks.trial_on(lambda: ranks), seed)
        told = Verdict.of(task, tried, seconds=0.0, seed=seed)
        return told if told.mistake in allowed else graded(submission, seed=seed)

    return verdict


@pytest.fixture
def passing(ranks):
    """passing(submission): the verdict on a right answer, on 1 and 3 ranks; test_many_seeds has every world."""

    def verdict(submission, worlds=(1, 3)) -> Verdict:
        task = task_of(submission.task)
        runner = LocalRunner(task, submission.names().get(task.name), ranks=ranks)
        sizes = [size for size in task.world_sizes if size in worlds] or task.world_sizes
        results = [grade_world(task, runner, size, SEED) for size in sizes]
        return Verdict.of(replace(task, world_sizes=tuple(sizes)), results, seconds=0.0, seed=SEED)

    return verdict
