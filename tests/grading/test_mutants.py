"""The grader, graded: each planted mistake fails with its own hint, each other right answer passes."""

from __future__ import annotations

from collections import Counter

import pytest

from helpers.grading import labs, tasks_of
from tests.grading.submissions import MUTANTS, RIGHT_ANSWERS, name_of


@pytest.mark.parametrize("mutant", MUTANTS, ids=name_of)
def test_a_mutant_fails_with_its_own_hint(mutant, graded):
    verdict = graded(mutant)
    assert not verdict.passed, verdict.text()
    assert verdict.mistake == mutant.hint, verdict.text()
    assert mutant.name == mutant.hint or mutant.name.startswith(mutant.hint + "_"), "it is named as its hint"


@pytest.mark.parametrize("answer", RIGHT_ANSWERS, ids=name_of)
def test_another_right_answer_passes(answer, graded):
    verdict = graded(answer)
    assert verdict.passed, verdict.text()


@pytest.mark.parametrize("lab", labs())
def test_every_hint_has_a_mutant_and_every_task_two(lab):
    tasks = tasks_of(lab)
    mutants = [mutant for mutant in MUTANTS if mutant.task in tasks]
    hinted = {mutant.hint for mutant in mutants}
    hints = {key for task in tasks.values() for key in task.hints}
    assert hints == hinted, "hints without a mutant, or mutants without a hint"
    per_task = Counter(mutant.task for mutant in mutants)
    assert not [key for key in tasks if per_task[key] < 2]


@pytest.mark.parametrize("lab", labs())
def test_every_task_has_a_right_answer(lab):
    assert not tasks_of(lab).keys() - {answer.task for answer in RIGHT_ANSWERS}
