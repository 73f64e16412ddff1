"""Hints are complete in both languages."""

from __future__ import annotations

import pytest

from helpers.grading import chapters_with_tasks, exercises_of, tasks_of

TASKS = {number: [*tasks_of(number).values(), *exercises_of(number).values()] for number in chapters_with_tasks()}
HINTS = sorted({(number, key) for number, tasks in TASKS.items() for task in tasks for key in task.hints})


def hint_of(lab: str, key: str):
    return next(task.hints[key] for task in TASKS[lab] if key in task.hints)


def is_chinese(text: str) -> bool:
    return any("\u4e00" <= character <= "\u9fff" for character in text)


@pytest.mark.parametrize(("lab", "key"), HINTS)
def test_a_hint_speaks_both_languages(lab, key):
    hint = hint_of(lab, key)
    assert hint.en and not is_chinese(hint.en)
    assert is_chinese(hint.zh)
    assert len(hint.en) <= 200, "a hint is one or two short sentences"
