"""`exercise`: the lab's judge in a chapter's cell, where nothing raises and an untouched stub says so."""

from __future__ import annotations

import pytest

from helpers import grading
from helpers.grading import NotYet, exercise, registry, run_on_ranks
from helpers.learner import progress
from tests.grading.test_check import sums
from tests.grading.test_run_on_ranks import right

KEY = "03.average"


def given_lines(model):
    """What it is for."""
    parameters = list(model.parameters())
    # 1. add up
    ...
    return parameters


class Half:
    def __init__(self, model):
        self.model = model

    def step(self): ...


@pytest.mark.parametrize("stub", [given_lines, Half])
@pytest.mark.parametrize(("lang", "says"), [("en", "03.average  yours to write: "), ("zh", "03.average  由你来写")])
def test_a_stub_says_in_a_line_whose_it_is_and_nothing_is_noted(stub, lang, says, notes, capsys):
    assert exercise(KEY, stub, lang=lang, progress_file=notes) is None
    said = capsys.readouterr().out
    assert said.startswith(says) and said.count("\n") == 1 and "`...`" in said
    assert not notes.exists()


def test_after_stop_it_raises_so_that_run_all_ends(notes, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(run_on_ranks.LocalRunner, "__call__", interrupted)
    with pytest.raises(NotYet, match="No attempt was counted"):
        exercise(KEY, right, progress_file=notes)
    assert not notes.exists()


def test_what_is_right_is_one_line_and_counts_for_the_lab(notes, capsys):
    exercise(KEY, right, progress_file=notes)
    said = capsys.readouterr().out
    assert said.startswith("03.average  passed · 1, 2, 3, 4, 5 ranks · ") and said.count("\n") == 1
    assert progress.read_standings(notes)["03"][KEY].passed


def test_what_is_wrong_says_what_check_says_and_raises_nothing(notes, refused, capsys):
    exercise(KEY, sums, seed=7, lang="en", progress_file=notes)
    said = capsys.readouterr().out.splitlines()
    lines = refused(sums, seed=7, lang="en")._render_traceback_()
    assert said[:3] == lines[:3] and len(said) == len(lines)  # the last one has the seconds
    assert [entry.passed for entry in progress.read(notes).entries] == [False, False]


def test_an_exception_of_the_learner_is_told_with_its_line(notes, capsys):
    def average_gradients(model):
        print("so far")
        return model.nothing

    exercise(KEY, average_gradients, lang="en", progress_file=notes)
    first, second, *rest = capsys.readouterr().out.splitlines()
    assert (first, second) == ("rank 0 │ so far", "03.average  not yet")
    assert "AttributeError" in "\n".join(rest) and "return model.nothing" in "\n".join(rest)


@pytest.mark.parametrize(("key", "handed_in", "says"), [("03.avarage", right, "no task '03.avarage'"), (KEY, 3, "int")])
def test_what_cannot_be_judged_is_a_sentence(key, handed_in, says, notes, capsys):
    exercise(key, handed_in, lang="en", progress_file=notes)
    assert says in capsys.readouterr().out


# -- tasks of a chapter alone ----------------------------------------------------------------------------------------
def test_a_task_of_the_chapter_alone_is_none_of_the_lab(monkeypatch, tmp_path):
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "__init__.py").touch()
    (tmp_path / "small" / "own.py").write_text(
        "import dataclasses\nfrom helpers.grading.collectives.cost import COST as ONE\n"
        'COST = dataclasses.replace(ONE, key="00.cost")\n'
    )
    monkeypatch.setattr("helpers.grading.__path__", [*grading.__path__, str(tmp_path)])
    small = registry.Lab(number="00", topic="small", tasks=(), in_chapter=("own.COST",))
    monkeypatch.setitem(registry.public_labs(), "00", small)
    assert "00" in grading.chapters_with_tasks() and "00" not in grading.labs()
    assert grading.lab_of("00").name == "00_small"
    assert grading.tasks_of("00") == {} and list(grading.exercises_of("00")) == ["00.cost"]
    assert registry.task_of("00.cost").key == "00.cost"
    with pytest.raises(ValueError, match="there is no task '00.half': there are 00.cost"):
        registry.task_of("00.half")
