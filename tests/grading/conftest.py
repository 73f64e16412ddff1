"""Submissions from files, graded on the session's ranks."""

from __future__ import annotations

import pytest

from helpers.grading import Verdict, grade, task_of
from tests.grading.submissions import load


@pytest.fixture
def graded(ranks):
    """graded(path): the verdict on the function of a mutant, a right answer or a solution."""

    def verdict(path, *, seed: int | None = None) -> Verdict:
        submission = load(path)
        key = submission["TASK"]
        return grade(key, submission.get(task_of(key).name), seed=seed, ranks=ranks)

    return verdict
