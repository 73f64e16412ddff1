"""Drills and the mock interview in a terminal, with a check that needs no ranks."""

import io
import sys
from types import SimpleNamespace

import pytest

from helpers.interview import drills, quiz_command, terminal
from helpers.learner import progress


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def typed(monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def check(key, answer):
    """Passes what returns 42; who hands in a stub has not passed."""
    try:
        passed = answer() == 42
    except (NotImplementedError, TypeError):
        passed = False
    return SimpleNamespace(passed=passed, was_tried=True, text=lambda language: f"{key} {language} {passed}")


@pytest.fixture
def one(here):
    return drills.drill("03.average")


def test_a_drill_is_written_in_a_file_until_it_passes(here, one, monkeypatch, capsys):
    (here / "mine.py").write_text(f"def {one.name}():\n    return 42\n")
    (here / "wrong.py").write_text(f"def {one.name}():\n    return 41\n")
    typed(monkeypatch, "\nwrong.py\nnone.py\nmine.py\n")
    assert quiz_command.main(["--drill", "03.average"], check) == 0
    said = capsys.readouterr().out
    assert (here / "drill_03_average.py").read_text() == one.stub
    assert "03.average en False" in said and "none.py cannot be read" in said and "03.average en True" in said
    assert "Time used: 0:0" in said
    attempts = progress.read_standings()["03"]["03.average"]
    assert (attempts.attempts, attempts.passed) == (2, True)


def test_a_stub_as_it_was_laid_starts_no_rank(here, one, monkeypatch, capsys):
    def refuse(key, answer):
        raise AssertionError("nothing was written yet")

    typed(monkeypatch, "\nq\n")
    assert quiz_command.main(["--drill", "03.average"], refuse) == 0
    assert "write your answer in drill_03_average.py first" in " ".join(capsys.readouterr().out.split())
    assert progress.read_standings() == {}


def test_ctrl_c_in_a_check_leads_back_to_the_prompt(here, one, monkeypatch, capsys):
    def cut(key, answer):
        raise KeyboardInterrupt

    (here / "mine.py").write_text(f"def {one.name}():\n    return 42\n")
    typed(monkeypatch, "mine.py\nq\n")
    assert quiz_command.main(["--drill", "03.average"], cut) == 0
    said = capsys.readouterr().out
    assert "The check was interrupted; nothing was noted." in said and "Time used: " in said
    assert progress.read_standings() == {}


def test_an_answer_that_is_there_is_never_overwritten(here, one, monkeypatch, capsys):
    (here / "drill_03_average.py").write_text("mine = 1\n")
    typed(monkeypatch, "\ns\n")
    assert quiz_command.main(["--drill", "03.average", "--lang", "zh"], check) == 0
    assert (here / "drill_03_average.py").read_text() == "mine = 1\n"
    assert "没有改动它" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("x = 1\n", "defines no answer: write it under that name"),
        ("x = 1\ny = z\n", "line 2 fails: NameError: name 'z' is not defined"),
        ("def answer(:\n", r"line 1 fails: .*SyntaxError"),
        ("import sys\n\nsys.exit(3)\n", "line 3 fails: SystemExit: 3"),
        ("\x00", "fails"),
    ],
)
def test_a_file_that_does_not_run_is_a_sentence(here, source, sentence):
    (here / "a.py").write_text(source)
    with pytest.raises(ValueError, match="(?s)" + sentence):
        terminal.load_answer(here / "a.py", "answer")


def test_each_press_of_enter_runs_the_file_anew(here):
    for number in (1, 2):
        (here / "a.py").write_text(f"def answer():\n    return {number}\n")
        assert terminal.load_answer(here / "a.py", "answer")() == number


def test_the_drills_are_listed(here, capsys):
    assert quiz_command.main(["--drill"]) == 0
    said = capsys.readouterr().out
    assert all(one.key in said for one in drills.drills()) and "--drill 01.all_reduce" in said


def test_a_mock_interview_from_the_first_card_to_the_sheet(here, monkeypatch, capsys):
    cards = "\n\n3\n" + "\nwhat\n1\n" + "s\n" + "\n4\n" + "\n2\n"
    typed(monkeypatch, cards + "\ns\nsheet.md\n")
    assert quiz_command.main(["--mock", "--topic", "ddp"], check) == 0
    said = capsys.readouterr().out
    assert "5 of 5 · ddp" in said and "Your time: 0:00 of 3:00." in said and "'what' is not a rating" in said
    assert "Strong: " in said and "Weak: " in said and "Kept as sheet.md." in said
    assert (here / "sheet.md").read_text().startswith("# Mock interview")
    ratings = [entry.more["rating"] for entry in progress.read().entries if entry.kind == "quiz"]
    assert ratings == ["good", "again", "easy", "hard"]


def test_a_mock_interview_that_ends_early_shows_its_sheet_too(here, monkeypatch, capsys):
    typed(monkeypatch, "\n\n3\nq\n")
    assert quiz_command.main(["--mock", "--lang", "zh"], check) == 0
    said = capsys.readouterr().out
    assert "模拟面试（种子" in said and "未做到" in said


def test_a_folder_that_cannot_be_written_shows_the_beginning_instead(here, one, monkeypatch, capsys):
    (here / "mine.py").write_text(f"def {one.name}():\n    return 42\n")

    def no_space(*arguments, **options):
        if "x" in arguments[1:]:
            raise OSError(28, "No space left on device")
        return open(*arguments, **options)

    monkeypatch.setattr(terminal, "open", no_space, raising=False)
    typed(monkeypatch, "mine.py\n")
    assert quiz_command.main(["--drill", "03.average"], check) == 0
    said = capsys.readouterr().out
    assert "cannot be created here (No space left on device)" in said and f"def {one.name}" in said and "True" in said
