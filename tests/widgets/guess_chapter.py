"""A made-up chapter 77 for the tests of guesses, in an empty home where somebody is there."""

from __future__ import annotations

import pytest

from helpers.draw import Label, Scene
from helpers.learner import progress
from helpers.learner.guesses import calibration, questions
from helpers.widgets import guess

YAML = """
77.bytes: {answer: 7, zh: 每个参数多少字节？}
77.shrink: {answer: 'no', zh: {question: 会变小吗？, choices: [会, 不会]}}
77.walk: {answer: [gather, compute, free], zh: {question: 排序, choices: [收集, 计算, 释放]}}
77.step: {answer: 20}
"""
SCENE = Scene(width=200, height=60, title="four bars", summary="Four bars.", items=(Label(x=9, y=9, text="four"),))
ASKED = {
    "77.bytes": {"text": "bytes per parameter", "unit": "B", "kind": "memory"},
    "77.shrink": {"text": "do they shrink?", "choices": ["yes", "no"], "kind": "memory"},
    "77.walk": {"text": "in order, please", "order": ["gather", "compute", "free"], "kind": "traffic"},
    "77.step": {"text": "how long?", "unit": "ms", "between": True, "kind": "time"},
}
GIVEN = {"77.bytes": "6 bytes", "77.shrink": "yes", "77.walk": ["free", "gather", "compute"], "77.step": ("5", "8")}


@pytest.fixture
def chapter(tmp_path, monkeypatch):
    """The chapter and the home."""
    (tmp_path / "77_made_up.yaml").write_text(YAML, encoding="utf-8")
    known = questions.all_declarations(tmp_path)
    for module in (questions, calibration):
        monkeypatch.setattr(module, "all_declarations", lambda: known)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RANKS_HOME", "RANKS_UNATTENDED", "GUESS", "GUESS_BOX"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def ask(key: str, **more):
    asked = dict(ASKED[key])
    return guess(asked.pop("text"), key=key, **asked, **more)


def noted() -> list[progress.ProgressEntry]:
    return [entry for entry in progress.read().entries if entry.kind == "guess"]
