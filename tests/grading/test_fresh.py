"""The grader, graded by strangers: wrong answers fail and draw no other mistake's hint, right ones pass.

A wrong answer whose hint a mutant proves already is slow; every hint has a mutant (test_mutants.py).
"""

from __future__ import annotations

import pytest

from tests.grading.fresh import fresh
from tests.grading.submissions import Submission, name_of


def wrong_answers() -> list[pytest.param]:
    return [pytest.param(one, marks=[pytest.mark.slow] if one.hint else [], id=name_of(one)) for one in fresh("wrong")]


@pytest.mark.parametrize("answer", wrong_answers())
def test_a_stranger_s_wrong_answer_fails_and_no_other_mistake_is_named(answer: Submission, failing):
    verdict = failing(answer, {answer.hint, None})
    assert any(not one.passed for one in verdict.results), answer.who
    assert verdict.mistake in (None, answer.hint), f"{answer.who}\n{verdict.text()}"


@pytest.mark.parametrize("answer", list(fresh("right")), ids=name_of)
def test_a_stranger_s_right_answer_passes(answer, passing):
    verdict = passing(answer)
    assert verdict.passed, f"{answer.who}\n{verdict.text()}"
