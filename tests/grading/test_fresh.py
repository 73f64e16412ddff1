"""The grader, graded by strangers: wrong answers fail and draw no other mistake's hint, right ones pass."""

from __future__ import annotations

import pytest

from tests.grading.fresh import fresh
from tests.grading.submissions import name_of


@pytest.mark.parametrize("answer", list(fresh("wrong")), ids=name_of)
def test_a_stranger_s_wrong_answer_fails_and_no_other_mistake_is_named(answer, failing):
    verdict = failing(answer, {answer.hint, None})
    assert any(not one.passed for one in verdict.results), answer.who
    assert verdict.mistake in (None, answer.hint), f"{answer.who}\n{verdict.text()}"


@pytest.mark.parametrize("answer", list(fresh("right")), ids=name_of)
def test_a_stranger_s_right_answer_passes(answer, passing):
    verdict = passing(answer)
    assert verdict.passed, f"{answer.who}\n{verdict.text()}"
