"""The grader, graded: each planted mistake fails with its own hint, each other right answer passes."""

from __future__ import annotations

from collections import Counter

import pytest

from helpers.grading import labs, task_of, tasks_of
from tests.grading.submissions import MUTANTS, RIGHT_ANSWERS, load, name_of


@pytest.mark.parametrize("path", MUTANTS, ids=name_of)
def test_a_mutant_fails_with_its_own_hint(path, graded):
    mutant = load(path)
    verdict = graded(path)
    assert not verdict.passed, verdict.text()
    assert verdict.mistake == mutant["HINT"], verdict.text()
    assert mutant["__doc__"], "its first line says who makes this mistake and why"
    assert path.stem == mutant["HINT"] or path.stem.startswith(mutant["HINT"] + "_"), "the file is named as its hint"


@pytest.mark.parametrize("path", RIGHT_ANSWERS, ids=name_of)
def test_another_right_answer_passes(path, graded):
    verdict = graded(path)
    assert verdict.passed, verdict.text()


@pytest.mark.parametrize("lab", labs())
def test_every_hint_has_a_mutant_and_every_task_two(lab):
    tasks = tasks_of(lab)
    mutants = [mutant for path in MUTANTS if task_of((mutant := load(path))["TASK"]).key in tasks]
    hinted = {mutant["HINT"] for mutant in mutants}
    hints = {key for task in tasks.values() for key in task.hints}
    assert hints == hinted, "hints without a mutant, or mutants without a hint"
    per_task = Counter(mutant["TASK"] for mutant in mutants)
    assert not [key for key in tasks if per_task[key] < 2]


@pytest.mark.parametrize("lab", labs())
def test_every_task_has_a_right_answer(lab):
    answered = {load(path)["TASK"] for path in RIGHT_ANSWERS}
    assert not tasks_of(lab).keys() - answered
