"""What a learner alone is offered: the lab's answer after the third attempt, the rubric once an answer is written."""

from __future__ import annotations

import json

import pytest

from helpers.grading import grade, lab_notebooks, labs, rubric, solution, tasks_of
from helpers.learner import progress
from helpers.learner.words import use_language
from tests.grading.test_run_on_ranks import not_written

KEY = "03.average"
OFFER = 'here:\n    from helpers.grading import solution; solution("03.average")'


def untouched(model):
    """Changes nothing, which is wrong."""


# -- the lab's own answer --------------------------------------------------------------------------------------------
def test_the_third_failed_attempt_ends_with_the_offer_and_no_earlier_one(refused):
    assert [OFFER in str(refused(untouched)) for _ in range(4)] == [False, False, True, True]
    *_, last, code = str(refused(untouched, lang="zh")).splitlines()
    assert code.strip() in OFFER
    assert last.startswith("  已经试了 5 次：参考答案在 solutions/03_ddp.ipynb")


def test_other_tasks_and_passed_attempts_do_not_count(notes, refused):
    for key, passed in ((KEY, True), ("03.start", False), ("03.start", False), (KEY, False)):
        progress.record("check", key, passed, path=notes)
    assert OFFER not in str(refused(untouched))


def test_attempts_in_the_chapter_count_and_are_named(notes, refused):
    for _ in range(2):
        progress.record("check", KEY, False, path=notes, place=progress.CHAPTER)
    assert "after 3 attempts, those in the chapter too: the lab's own" in str(refused(untouched))


def test_what_is_not_written_is_no_attempt_to_be_helped_with(refused):
    assert [OFFER in str(refused(not_written)) for _ in range(4)] == [False] * 4


def test_where_a_teacher_has_taken_the_solutions_away_nothing_is_offered(refused, tmp_path, monkeypatch):
    monkeypatch.setattr(lab_notebooks, "ROOT", tmp_path)
    assert not [text for text in (str(refused(untouched)) for _ in range(4)) if "solution" in text]
    assert "the person who gave you the lab keeps the answers" in solution(KEY)
    assert "with the person who gave you the lab" in rubric("03")


def test_grading_a_class_offers_nothing(notes, ranks):
    for _ in range(4):
        progress.record("check", KEY, False, path=notes)
    assert "solution" not in grade(KEY, untouched, ranks=ranks).text()


@pytest.mark.parametrize("lab", labs())
def test_every_task_has_an_answer_to_show(lab):
    for key, task in tasks_of(lab).items():
        shown = solution(key)
        assert shown.startswith("```python\n") and shown.endswith("\n```") and "SOLUTION" not in shown
        assert task.name in shown
        assert repr(shown) == shown._repr_markdown_() == shown


def test_an_unknown_task_is_answered_with_those_there_are():
    with pytest.raises(ValueError, match="there is no task"):
        solution("03.averge")


# -- the rubric ------------------------------------------------------------------------------------------------------
@pytest.fixture
def mine(tmp_path, monkeypatch):
    """mine(text): a learner's copy of lab 03 with this answer, in the folder where the kernel runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)

    def write(text: str, name: str = "03_ddp.ipynb"):
        notebook = json.loads((lab_notebooks.ROOT / "labs" / "03_ddp.ipynb").read_text(encoding="utf-8"))
        next(cell for cell in notebook["cells"] if cell["id"] == "explain")["source"] = text
        (tmp_path / name).write_text(json.dumps(notebook), encoding="utf-8")
        return tmp_path / name

    return write


@pytest.mark.parametrize("text", ["YOUR ANSWER HERE", "", " \n"])
def test_nothing_is_shown_before_something_is_written(mine, text):
    mine(text)
    assert "no saved answer yet" in rubric("03") and "Rubric" not in rubric("03")
    with use_language("zh"):
        assert "还没有" in rubric("03")


def test_an_answer_brings_the_rubric(mine):
    mine("Because ranks are averaged, not examples.")
    shown = rubric("03")
    assert "**Rubric** (3 points)" in shown and "SOLUTION" not in shown and "twice as much" in shown


def test_a_renamed_notebook_is_found_by_what_jupyter_tells_or_by_its_name(mine, monkeypatch):
    path = mine("An answer.", "mine.ipynb")
    assert 'rubric("03", "03_ddp.ipynb")' in rubric("03")
    assert "**Rubric**" in rubric("03", "mine.ipynb")
    monkeypatch.setenv("JPY_SESSION_NAME", str(path))
    assert "**Rubric**" in rubric("03")


@pytest.mark.parametrize("damage", ["", "{}", "[1]", '{"cells": [1]}', '{"cells": 3}'])
def test_a_damaged_notebook_shows_nothing(mine, damage):
    mine("An answer.").write_text(damage)
    assert "Rubric" not in rubric("03")


@pytest.mark.parametrize("lab", labs())
def test_every_lab_has_a_rubric(lab):
    assert "**Rubric**" in rubric(lab, lab_notebooks.solution_path(lab))
