"""Every kind of conversation is plain steps: they go through JSON, and need nothing but Python and YAML."""

import json
import subprocess
import sys

import pytest

from helpers.interview import Quiz
from helpers.interview.dialogue_talk import DialogueTalk
from helpers.interview.dialogues import dialogue
from helpers.interview.drills import Attempt, drill
from helpers.interview.mock import MockInterview
from helpers.interview.round_attempt import new_attempt
from helpers.interview.round_items import choose_round
from helpers.interview.steps import FORMS, Ask, Reply, Talk, Tell, as_json
from tests.interview.quiz_cards import CARDS, Clock, played


def check(key, answer):
    return answer == "right"


TALKS = {  # kind -> a function of the progress file that makes the talk, and replies to its questions
    "quiz": (lambda path: Quiz(CARDS, path=path, now=Clock(), seed=1), ["1024", "", "64.2 MB", "", "", "good"]),
    "mock": (lambda path: MockInterview(path=path, seed=1, check=check), ["", *["", "good"] * 5, "wrong", "right"]),
    "marking": (
        lambda path: new_attempt(choose_round("only-rank-0-reports"), path=path, language="en"),
        ["", Reply(("99", ""), "mark"), ":hint", Reply((16, "why"), "mark"), "", ["0"]],
    ),
    "design": (lambda path: new_attempt(choose_round("eight-gpus"), path=path), ["", "128.5", "dp=8 tp=1", "5", "7"]),
    "drill": (lambda path: Attempt(drill("wb.merge"), check, path=path), [":begin", "wrong", "right"]),
    "dialogue": (lambda path: DialogueTalk(dialogue("rl-30b"), language="zh"), ["mine", ":all"]),
}


@pytest.mark.parametrize("kind", TALKS)
def test_each_step_is_plain_data(kind, tmp_path):
    make, replies = TALKS[kind]
    steps = played(make(tmp_path / "progress.jsonl"), *replies)
    assert len([step for step in steps if isinstance(step, Ask)]) >= len(replies)
    assert {step.form for step in steps if isinstance(step, Ask)} <= set(FORMS)
    for step in steps:
        sent = json.loads(json.dumps(as_json(step)))
        assert sent["step"] == type(step).__name__ and any(
            sent.get(name) for name in ("text", "form", "parts", "heading")
        )


def test_every_form_is_asked_somewhere(tmp_path):
    steps = [step for name, (make, replies) in TALKS.items() for step in played(make(tmp_path / name), *replies)]
    steps += played(Quiz(CARDS, form="choice", path=tmp_path / "choice"))
    assert {step.form for step in steps if isinstance(step, Ask)} == set(FORMS)


def test_a_reply_that_cannot_be_read_is_asked_for_again_with_the_reason():
    steps = Talk().ask_until_read(Ask(form="number", question="How many?"), int)
    assert next(steps).problem == ""
    again = steps.send(Reply("many"))
    assert again.question == "How many?" and "invalid literal" in again.problem
    with pytest.raises(StopIteration) as ended:
        steps.send(Reply("3"))
    assert ended.value.value == 3


def test_a_talk_goes_on_where_it_was_after_an_error(tmp_path):
    """As when the check of a program fails by itself: the learner loses neither the cards nor the clock."""

    def broken(key, answer):
        raise MemoryError

    interview = MockInterview(path=tmp_path / "progress.jsonl", seed=1, check=broken)
    with pytest.raises(MemoryError):
        played(interview, "", *[":skip"] * 5, "answer")
    assert next(interview.steps()).form == "code" and interview.attempt.watch.began


# Refuses every import from outside the standard library, this package and the libraries in PURE. PyYAML reads the bank,
# without its part in C. fsrs, which needs typing_extensions, is imported only once a card has been answered.
BARE = """
import importlib.abc, sys
PURE = {"yaml", "fsrs", "typing_extensions"}
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in (*sys.stdlib_module_names, "helpers", *PURE) or name == "yaml._yaml":
            raise ImportError(f"{name} is not there in a browser")
sys.meta_path.insert(0, Refuse())
import helpers.interview
from helpers.interview import quiz_command, round_attempt  # with all talks and the terminal
from helpers.interview.steps import Ask, Reply
assert not {"fsrs", "typing_extensions"} & set(sys.modules)
steps = helpers.interview.Quiz(form="folded", topics="ddp", count=2).steps()
step, forms = next(steps), []
try:
    while True:
        if isinstance(step, Ask):
            forms.append(step.form)
            step = steps.send(Reply("good"))
        else:
            step = next(steps)
except StopIteration:
    print(*forms, step.text)
"""


def test_a_quiz_runs_where_only_pure_python_is(tmp_path, monkeypatch):
    monkeypatch.setenv("RANKS_HOME", str(tmp_path))
    done = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ready rating pause ready rating Due within a day")
    assert len((tmp_path / ".rank-by-rank" / "progress.jsonl").read_text().splitlines()) == 2


def test_a_verdict_prints_what_the_code_printed_first():
    assert repr(Tell(text="Not yet.", output="loss 3", style="wrong")) == "loss 3\nNot yet."
