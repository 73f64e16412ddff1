"""Hints are complete in both languages."""

from __future__ import annotations

import pytest

from helpers.grading import labs, tasks_of

HINTS = sorted({(lab, key) for lab in labs() for task in tasks_of(lab).values() for key in task.hints})


def hint_of(lab: str, key: str):
    return next(task.hints[key] for task in tasks_of(lab).values() if key in task.hints)


def is_chinese(text: str) -> bool:
    return any("\u4e00" <= character <= "\u9fff" for character in text)


@pytest.mark.parametrize(("lab", "key"), HINTS)
def test_a_hint_speaks_both_languages(lab, key):
    hint = hint_of(lab, key)
    assert hint.en and not is_chinese(hint.en)
    assert is_chinese(hint.zh)
    assert len(hint.en) <= 200, "a hint is one or two short sentences"
