"""The talks of the web edition without a browser: the page's Python, the progress file, the package and the places."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from helpers.interview.bank_file import load_all
from helpers.interview.quiz import Quiz
from helpers.interview.terminal import TerminalScreen, play_in_terminal
from helpers.learner import progress
from helpers.learner.yaml_file import read_texts, read_yaml
from tools.book.pyodide import LIBRARIES, as_json, package_files, write_package
from tools.book.talk_block import quiz_page

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / "tools" / "book"
OPTIONS = {"count": 10, "seed": 3}
VALUES = {"choice": "b", "number": "3", "rating": "hard"}  # form of a question -> what is replied
TYPED = {"Your choice": "b", "Your number": "3", "How was it?": "2"}  # beginning of a terminal's prompt -> the same


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home without a progress file."""
    monkeypatch.setenv(progress.HOME_VARIABLE, str(tmp_path / "page"))
    return tmp_path


@pytest.fixture
def call(home, monkeypatch):
    """Calls a function of the page's Python as a page does: by its name, with JSON."""
    monkeypatch.syspath_prepend(TOOLS / "page")
    import calls

    def called(name, *arguments):
        answer = json.loads(calls.call(name, json.dumps(arguments)))
        assert "error" not in answer, answer["error"]
        return answer["value"]

    return called


def play(call, kind, options, progress_text="", language="en"):
    """Play a talk to its end. Returns its steps, and the progress file that the page stores."""
    result, steps = call("talks.start", "talk", kind, options, language, progress_text), []
    while True:
        steps += result["steps"]
        progress_text += result["added"]
        if steps[-1]["step"] != "Ask":
            return steps, progress_text
        result = call("talks.reply", "talk", VALUES.get(steps[-1]["form"], ""), "")


def entries(text):
    """The lines of a progress file without what differs from one play to another."""
    lines = map(json.loads, text.splitlines())
    return [{name: value for name, value in line.items() if name not in ("time", "seconds")} for line in lines]


def test_ten_cards_write_what_the_terminal_writes(call, home, monkeypatch):
    steps, stored = play(call, "quiz", OPTIONS)
    assert {step["form"] for step in steps if step["step"] == "Ask"} >= {"choice", "number", "ready", "rating", "pause"}
    path = home / "terminal.jsonl"
    typed = lambda self, prompt: next((TYPED[start] for start in TYPED if prompt.startswith(start)), "")  # noqa: E731
    monkeypatch.setattr(TerminalScreen, "ask", typed)
    play_in_terminal(Quiz(**OPTIONS, language="en", path=path), TerminalScreen("en"))
    assert entries(stored) == entries(path.read_text(encoding="utf-8"))
    assert len(entries(stored)) == 10


def test_a_quiz_continues_with_what_the_browser_stored(call, home):
    _, stored = play(call, "quiz", OPTIONS)
    progress.default_path().unlink()  # as after a reload
    steps, more = play(call, "quiz", OPTIONS, stored)
    first, second = ({entry["key"] for entry in entries(text)} for text in (stored, more.removeprefix(stored)))
    assert not first & second, "what is not due yet is not asked"
    assert progress.entries_in(more).num_skipped == 0
    # The exported file is a progress file of the terminal.
    path = home / "exported.jsonl"
    path.write_text(more, encoding="utf-8")
    assert Quiz(path=path).reviews.ratings(next(iter(first)))
    steps, _ = play(call, "quiz", {"topics": ["zero"], "only_due": True}, stored)
    assert "No card is due now" in steps[-1]["text"]


def test_an_imported_file_adds_its_new_lines_and_loses_nothing(call, home):
    path = home / "own.jsonl"
    progress.record("language", "zh", True, path=path)
    progress.record("quiz", "ring-steps", True, path=path, rating="good")
    given = path.read_text(encoding="utf-8")
    _, stored = play(call, "quiz", {"count": 1})
    found = call("talks.merge", stored, given + "not a line\n")
    assert found == {"added": given, "num_added": 2, "num_known": 0, "num_unreadable": 1}
    both = stored + found["added"]
    assert progress.entries_in(both).entries == (*progress.entries_in(stored).entries, *progress.read(path).entries)
    assert call("talks.merge", both, given)["num_known"] == 2 and not call("talks.merge", both, given)["added"]
    wrong = call("talks.merge", both, '{"cells": []}\n\x89PNG')
    assert wrong == {"added": "", "num_added": 0, "num_known": 0, "num_unreadable": 2}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_worked_interview_and_a_round_play_in_both_languages(call, language):
    steps, stored = play(call, "dialogue", {"name": "pretrain-70b"}, language=language)
    assert steps[-1]["step"] == "Show" and "<table" in steps[-1]["html"] and not stored
    steps, stored = play(call, "round", {"name": "accumulated-and-repeated"}, language=language)
    assert steps[-1]["can_save"] and entries(stored)[0]["kind"] == "round"


def test_marks_of_a_round_are_json_too(call):
    call("talks.start", "talk", "round", {"name": "accumulated-and-repeated"}, "en", "")
    call("talks.reply", "talk", "", "")
    ask = call("talks.reply", "talk", [8, "not divided"], "mark")["steps"][-1]
    assert ask["marks"] == {"8": "not divided"}
    assert call("talks.reply", "talk", 8, "unmark")["steps"][-1]["marks"] == {}
    call("talks.reply", "talk", [8, "not divided"], "mark")
    comparison = call("talks.reply", "talk", "", "")["steps"][-1]
    assert comparison["form"] == "agree"
    sheet = call("talks.reply", "talk", [comparison["options"][0]["value"]], "")["steps"][-1]
    assert "3 / 3" in sheet["text"]


# -- the package -----------------------------------------------------------------------------------------------------
ALONE = """
import json, sys
sys.path[:0] = [{folder} + "/page", {folder}]
import calls
known = set(sys.modules)
talks = {{"quiz": {{"count": 3}}, "dialogue": {{"name": "rl-30b"}}, "round": {{"name": "eight-gpus"}}}}
for kind, options in talks.items():
    answer = json.loads(calls.call("talks.start", json.dumps(["talk", kind, options, "zh", ""])))
    for _ in range(2):
        form = answer["value"]["steps"][-1]["form"]
        value = {{"choice": "a", "number": "1", "rating": "good", "text": "1"}}.get(form, "")
        answer = json.loads(calls.call("talks.reply", json.dumps(["talk", value, ""])))
from helpers.interview.card_html import cell_address
link = cell_address("03_ddp.ipynb", "prove")
used = {{name.partition(".")[0] for name in set(sys.modules) - known}} - set(sys.stdlib_module_names)
print(json.dumps([sorted(used), link]))
"""


def test_the_package_needs_only_the_pure_libraries_that_it_holds(home):
    archive, folder = home / "course.zip", home / "course"
    write_package(archive, ROOT)
    zipfile.ZipFile(archive).extractall(folder)
    # -I -S: without site-packages, the working directory and the environment of the tests.
    command = [sys.executable, "-I", "-S", "-c", ALONE.format(folder=repr(str(folder)))]
    done = subprocess.run(command, capture_output=True, text=True, env={"HOME": str(home)})
    assert done.returncode == 0, done.stderr
    used, link = json.loads(done.stdout)
    assert set(used) <= {"helpers", "talks", *LIBRARIES}
    assert "yaml" not in used, "every YAML file of the package is stored as JSON"
    assert link == "03_ddp.ipynb#cell-id=prove", "the page's script makes it a link to a cell of the page"


def test_every_yaml_file_of_the_package_reads_the_same_from_json(tmp_path):
    files = [file for file, _ in package_files(ROOT) if file.suffix == ".yaml"]
    assert len(files) > 50
    for file in files:
        copy = tmp_path / file.name
        copy.write_text(as_json(file), encoding="utf-8")
        read = read_texts if "words" in file.parts or file.name == "needs.yaml" else read_yaml
        assert read(copy) == read(file), file


# -- the places ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_page_of_the_quiz_gives_no_card_away(language):
    page = quiz_page(language)
    assert 'data-kind="quiz"' in page and "<noscript>" in page
    for card in load_all():
        assert card.question.in_(language) not in page and card.answer.in_(language) not in page


def test_the_interview_page_has_a_place_for_each_talk_and_a_note_for_those_on_live_ranks():
    pytest.importorskip("latex2mathml")
    from tools.book.build import page_of

    notebook = json.loads((ROOT / "notebooks" / "interview.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if "Explorer(" not in "".join(cell["source"])]  # these take seconds
    text = page_of({"cells": cells}, "en", "pictures").text
    kinds = [part.partition('"')[0] for part in text.split('class="rr-talk" data-kind="')[1:]]
    assert kinds == ["dialogue", "dialogue", "quiz", "round"]
    assert text.count("because a check runs your code on live ranks") == 2, "of the mock interview and the drill"
    assert "The candidate never said that 8 % of 512 GPUs" not in text, "a scorecard is not on the page"
