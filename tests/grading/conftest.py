"""Submissions, graded on the session's ranks."""

from __future__ import annotations

import pytest

from helpers.grading import Verdict, acting, grade, task_of
from helpers.ranks import Ranks


@pytest.fixture(scope="session")
def ranks():
    """As many ranks as a check asks for."""
    with Ranks(acting.NUM_RANKS, device="cpu", timeout=120, quiet=True, apart=acting.__name__) as pool:
        yield pool


SEED = 1  # a test is not to depend on luck


@pytest.fixture
def graded(ranks):
    """graded(submission): the verdict on a mutant or a right answer."""

    def verdict(submission, *, seed: int = SEED) -> Verdict:
        return grade(submission.task, submission.names().get(task_of(submission.task).name), seed=seed, ranks=ranks)

    return verdict
