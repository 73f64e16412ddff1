"""Hints are complete in both languages."""

from __future__ import annotations

import pytest

from helpers.grading import chapters_with_tasks, exercises_of, tasks_of
from helpers.grading.mistakes import hints_of
from helpers.learner.words import Words

MAX_HINT_LENGTH = 300  # a hint is one to three whole sentences


def is_chinese(text: str) -> bool:
    return any("\u4e00" <= character <= "\u9fff" for character in text)


def is_complete(hint: Words) -> bool:
    return bool(hint.en) and not is_chinese(hint.en) and is_chinese(hint.zh) and len(hint.en) <= MAX_HINT_LENGTH


@pytest.mark.parametrize("number", chapters_with_tasks())
def test_a_hint_is_short_and_in_both_languages(number):
    tasks = (tasks_of(number) | exercises_of(number)).items()
    hints = {f"{key}: {name}": hint for key, task in tasks for name, hint in hints_of(task).items()}
    assert not [name for name, hint in hints.items() if not is_complete(hint)]
