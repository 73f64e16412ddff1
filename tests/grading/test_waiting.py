"""The start of the checks' ranks in the background, and the line that says what a check does."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from helpers.grading import grade, start_ranks, waiting
from helpers.grading.waiting import ProgressLine
from helpers.learner.words import Words
from helpers.ranks.processes import process

STEPS = [Words(en=f"{size} ranks", zh=f"{size} 个 rank") for size in (2, 3)]


@pytest.fixture
def notebook(monkeypatch):
    """This process, as if it were a notebook's kernel; the line is shown at once."""
    monkeypatch.setattr(waiting, "is_in_notebook", lambda: True)
    monkeypatch.setattr(waiting, "QUIET_SECONDS", 0.0)


def test_the_line_grows_in_the_learner_s_language(notebook, capsys):
    with ProgressLine("03.average", "en") as line:
        line.step(STEPS[0])
        line._timer.join()
        line.step(STEPS[1])
    with ProgressLine("03.average", "zh") as line:
        line.step(STEPS[0])
        line._timer.join()
    shown = capsys.readouterr().out.splitlines()
    assert shown == ["checking 03.average · 2 ranks · 3 ranks", "正在检查 03.average · 2 个 rank"]


def test_a_short_check_says_nothing(notebook, monkeypatch, capsys):
    monkeypatch.setattr(waiting, "QUIET_SECONDS", 60.0)
    with ProgressLine("03.average", "en") as line:
        line.step(STEPS[0])
    line._timer.join()
    line._show()  # as if the timer had run out while the check ended
    assert capsys.readouterr().out == ""


def test_nothing_is_shown_outside_of_a_notebook(monkeypatch, capsys):
    monkeypatch.setattr(waiting, "QUIET_SECONDS", 0.0)
    with ProgressLine("03.average", "en") as line:
        line.step(STEPS[0])
        line._show()
    assert capsys.readouterr().out == ""


def test_each_world_is_a_step(ranks):
    steps = []
    grade("03.average", lambda model: None, ranks=ranks, step=lambda doing: steps.append(doing.en))
    assert [one for one in steps if one != "the ranks start"] == [f"{n} rank" + "s" * (n > 1) for n in (1, 2, 3, 4, 5)]


def test_the_start_returns_at_once_and_a_check_waits_for_it(monkeypatch):
    may_end, client = threading.Event(), SimpleNamespace(ready=True, wait_until_ready=lambda: None)

    def zygote(module):
        may_end.wait(60)
        return client

    monkeypatch.setattr(process, "zygote", zygote)
    monkeypatch.setattr(process, "running_zygote", lambda module: client)
    monkeypatch.setattr(waiting, "_start", None)
    start_ranks()
    assert not waiting.are_ranks_ready()
    may_end.set()
    waiting.wait_for_start()
    assert waiting.are_ranks_ready()


def test_a_start_that_fails_is_left_to_the_check(monkeypatch):
    def zygote(module):
        raise RuntimeError("no memory")

    monkeypatch.setattr(process, "zygote", zygote)
    monkeypatch.setattr(waiting, "_start", None)
    start_ranks()
    waiting.wait_for_start()
    assert waiting._start is not None and not waiting._start.is_alive()
