"""Every drill is a task of a lab, says what its task says, and is passed by the solution; the clock tells the truth."""

import ast
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from helpers.grading import NotYet, grade, labs, solution, task_of
from helpers.interview import load_all
from helpers.interview.card_html import cell_id
from helpers.interview.cards import Publication
from helpers.interview.drills import FILE, Attempt, DrillOutcome, _read_drill, drill, drills
from helpers.learner import progress
from helpers.learner.words import LANGUAGES
from helpers.learner.yaml_file import read_yaml

DRILLS = [pytest.param(one, id=one.key) for one in drills()]


class Clock:
    """A clock that a test turns."""

    def __init__(self):
        self.time = datetime(2026, 1, 1, 9, tzinfo=UTC)

    def __call__(self):
        return self.time

    def wait(self, seconds):
        self.time += timedelta(seconds=seconds)


def attempt(check=None, path=None, key="03.average", **options):
    clock = Clock()
    return Attempt(drill(key), check, path=path, now=clock, **options), clock


# -- all of them ------------------------------------------------------------------------------------------------------
def test_there_are_twenty_nine_and_every_lab_has_one():
    keys = [one.key for one in drills()]
    assert len(keys) == len(set(keys)) == 29 and keys == sorted(keys, key=lambda key: key[:2])
    assert {key[:2] for key in keys} == {*labs(), "wb"}
    assert all(bool(one.answer) == (one.key[:2] == "wb") for one in drills())


@pytest.mark.parametrize("one", DRILLS)
def test_the_prompt_and_the_stub_have_the_signature_of_the_task(one):
    signature = task_of(one.key).signature
    assert all(f"`{signature}`" in one.prompt.in_(language) for language in LANGUAGES)
    assert one.name == task_of(one.key).name
    defined = next(node for node in ast.parse(one.stub).body if getattr(node, "name", "") == one.name)
    if isinstance(defined, ast.ClassDef):
        defined = next(node for node in defined.body if getattr(node, "name", "") == "__init__")
    wanted = ast.parse(f"def {signature}: pass").body[0].args
    assert [each.arg for each in defined.args.args if each.arg != "self"] == [each.arg for each in wanted.args]


@pytest.mark.parametrize("one", DRILLS)
def test_it_fits_a_quarter_of_an_hour_and_a_screen(one):
    assert one.minutes == 15
    assert len(one.prompt.en.split()) <= 190 and 1 <= len(one.counts) <= 4
    assert max(map(len, one.stub.splitlines())) <= 100


@pytest.mark.parametrize("one", DRILLS)
def test_it_leads_to_the_cell_that_explains_it_and_to_the_labs_task(one):
    (_, cell), *labs_task = one.links()
    by = one.explained_by
    assert cell == (by.url if isinstance(by, Publication) else f"{by.notebook}.ipynb#cell-id={by.anchor}")
    assert one.topic in {card.topic for card in load_all()} and bool(one.answer) != bool(labs_task)
    for _, task in labs_task:
        assert task == f"labs/{one.explained_by.notebook}.ipynb#cell-id={one.key.partition('.')[2]}-task"
        assert cell_id(task.partition("#")[0], task.partition("=")[2])
    assert all(text for text, _ in one.links(language="zh"))


@pytest.mark.parametrize("one", DRILLS)
def test_the_stub_runs_and_does_not_pass(one):
    """That the solution does is held for every task of every lab by tests/test_labs.py."""
    stub = {"__name__": "stub"}
    exec(compile(one.stub, "stub", "exec"), stub)
    verdict = grade(one.key, stub[one.name])
    assert not verdict.passed and "not written yet" in verdict.text()


@pytest.mark.parametrize("one", [one for one in drills() if one.answer], ids=lambda one: one.key)
def test_the_answer_of_a_drill_without_a_lab_passes_and_is_read_in_a_minute(one):
    names = {"__name__": "answer"}
    exec(compile(one.answer, "answer", "exec"), names)
    verdict = grade(one.key, names[one.name])
    assert verdict.passed, verdict.text()
    assert (
        len(one.answer.splitlines()) <= 20 and one.answer.startswith("import torch") and one.answer in solution(one.key)
    )


@pytest.mark.parametrize("field", ["topic", "answer"])
def test_a_drill_without_a_lab_needs_a_topic_and_an_answer(field):
    (entry,) = (one for one in read_yaml(FILE)["drills"] if one["key"] == "wb.merge")
    entry[field] = ""
    with pytest.raises(ValueError, match=r"a drill of no lab has `topic` and `answer`"):
        _read_drill(entry)


def test_another_key_lists_the_drills():
    with pytest.raises(ValueError, match=r"there is no drill '03.start'; choose one of 01.all_reduce, .*wb.grpo"):
        drill("03.start")


# -- an attempt ------------------------------------------------------------------------------------------------------
def test_a_pass_in_time_is_told_and_noted(tmp_path):
    path = tmp_path / "progress.jsonl"
    one, clock = attempt(lambda key, answer: answer == 42, path)
    one.begin()
    clock.wait(75)
    assert not one.submit(41).passed
    assert one.outcomes[0].text == "Not yet: 13:45 of 15:00 are left."
    clock.wait(60)
    one.begin()  # begins once
    outcome = one.submit(42)
    assert outcome.passed and outcome.in_time and outcome.seconds == 135 and one.passed
    assert outcome.text == "Passed after 2:15 of 15:00, in time."
    clock.wait(600)
    assert one.watch.seconds == 135 and one.watch.ended is not None
    entries = progress.read(path).entries
    assert [(entry.kind, entry.key, entry.passed) for entry in entries] == [
        ("check", "03.average", False),
        ("check", "03.average", True),
    ]
    assert entries[1].more == {"drill": True, "seconds": 135.0, "in_time": True}


@pytest.mark.parametrize(
    ("language", "sentence"),
    [("en", "Passed after 16:00: 1:00 over the 15:00."), ("zh", "通过，用时 16:00，超出限时 15:00 共 1:00。")],
)
def test_over_time_is_told_and_not_cut_off(tmp_path, language, sentence):
    one, clock = attempt(lambda key, answer: True, tmp_path / "p", language=language)
    one.begin()
    clock.wait(960)
    assert one.watch.is_over and one.watch.ended is None
    outcome = one.submit(None)
    assert outcome.passed and not outcome.in_time and outcome.text == sentence


def test_without_a_clock_it_is_checked_all_the_same(tmp_path):
    one, _ = attempt(lambda key, answer: True, tmp_path / "p")
    outcome = one.submit(None)
    assert outcome.passed and outcome.seconds is None and outcome.text == ""
    assert "seconds" not in progress.read(tmp_path / "p").entries[0].more


def test_without_a_check_it_says_which_to_hand_in():
    with pytest.raises(ValueError, match="hand in a check, such as helpers.grading.grade"):
        attempt()[0].submit(print)


def test_a_file_that_cannot_be_written_is_told(tmp_path):
    outcome = attempt(lambda key, answer: True, tmp_path)[0].submit(None)  # a folder
    assert outcome.passed and "could not be noted" in outcome.note and "could not be noted" in repr(outcome)


def test_the_graders_verdict_is_said_in_the_language_and_its_mistake_is_kept(tmp_path):
    def check(key, answer):  # as helpers.grading.check does it: by an exception
        raise NotYet(grade(key, answer, seed=7))

    def sum_of_gradients(model):
        import torch.distributed as dist

        for parameter in filter(lambda p: p.grad is not None, model.parameters()):
            dist.all_reduce(parameter.grad)

    one, _ = attempt(check, tmp_path / "p", language="zh")
    outcome = one.begin().submit(sum_of_gradients)
    assert not outcome.passed and "还没通过" in outcome.output
    more = progress.read(tmp_path / "p").entries[0].more
    assert more == {"mistake": "sum_for_mean", "seed": 7, "drill": True, "seconds": 0.0, "in_time": True}


def test_a_check_that_was_stopped_is_no_outcome():
    verdict = SimpleNamespace(passed=False, was_tried=False, text=lambda language: "interrupted")
    one, _ = attempt(lambda key, answer: verdict)
    assert one.submit(None).output == "interrupted" and one.outcomes == []


def test_an_error_in_the_check_itself_is_not_swallowed():
    def check(key, answer):
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        attempt(check)[0].submit(None)


def test_an_outcome_reads_as_what_was_said():
    outcome = DrillOutcome(
        key="k", passed=True, seconds=1.0, in_time=True, output="k passed", text="Passed after 0:01."
    )
    assert repr(outcome) == "k passed\nPassed after 0:01."
