"""Hostile submissions: each is read and reported in seconds, has a row with a reason, and harms no other row."""

from __future__ import annotations

import csv
import os
import time
from dataclasses import replace

import pytest

from helpers.classroom import cli, grade, labs, reader, similarity
from helpers.classroom.grade import grade_one, open_state
from helpers.classroom.reports import report_html, terminal_table, write_tables
from helpers.classroom.results import AnswerPieces, Flag, GradedSubmission, GradedTask, cleaned
from helpers.classroom.submissions import UnreadableNotebook, find_submissions, read_bytes
from tests.classroom import hostile, notebooks
from tests.classroom.hostile import HOSTILE
from tests.timing import assert_one_of_three_is_within

MAX_SECONDS = 5.0  # of processor time on an idle machine, to read a submission and to report on it
# What the normal run reads: those that take longest, and one of each kind of file that cannot be read.
WORST = {"statements", "nested_prints", "long_line_of_operators", "chain_of_aliases", "flagged_lines"}
WORST |= {"many_lists", "nested_signs", "surrogates", "cut_off", "pipe"}
NAMES = [pytest.param(name, marks=() if name in WORST else pytest.mark.slow, id=name) for name in HOSTILE]


def test_there_are_forty():
    assert len(HOSTILE) == 40 and set(HOSTILE) > WORST


@pytest.mark.parametrize("name", NAMES)
def test_reading_and_reporting_take_seconds(name, tmp_path, lab_03):
    """In this process, where processor time can be measured. Beside other work, a core computes more slowly."""
    hostile.write(name, tmp_path)

    def seconds(attempt: int) -> float:
        start = time.process_time()
        one = read_in_this_process(name, tmp_path, lab_03)
        twins = [one, GradedSubmission(learner="twin", file="", lab="03_ddp", tasks=one.tasks, pieces=one.pieces)]
        text = page(twins, lab_03, tmp_path)
        took = time.process_time() - start
        if name != "control_characters":  # its error is raised only where it is run
            assert HOSTILE[name].says in text, one
        assert "\x1b" not in text and len(text) < 2_000_000
        return took

    assert_one_of_three_is_within(MAX_SECONDS, seconds)


def read_in_this_process(name: str, folder, lab: labs.LabNotebook) -> GradedSubmission:
    """A hostile submission, read without running it, as if all its tasks had passed."""
    try:
        fields = reader.read(read_bytes(folder / f"{name}.ipynb"), [lab], "en", has_changes=True)
    except UnreadableNotebook as error:
        return cleaned(GradedSubmission(learner=name, file=f"{name}.ipynb", problems=(str(error),)))
    tasks = [GradedTask(key=one.key, state="passed", max_points=one.points) for one in lab.tasks]
    tasks = tuple(one_with_flags(task, fields["flags"]) for task in tasks)
    pieces = tuple(AnswerPieces(**one) for one in fields["pieces"])
    more = {"problems": fields["problems"], "more_flags": fields["more_flags"], "pieces": pieces}
    return cleaned(GradedSubmission(learner=name, file="", lab="03_ddp", tasks=tasks, **more))


def one_with_flags(task: GradedTask, flags: list[dict]) -> GradedTask:
    return replace(task, flags=tuple(Flag(**flag) for flag in flags if flag["key"] == task.key))


def page(results: list[GradedSubmission], lab: labs.LabNotebook, folder) -> str:
    """All that a teacher reads: the page, the files for gradebooks and the table."""
    pairs = similarity.similar_pairs(results, [lab])
    text = report_html(results, title="", isolation_text="", rubrics={}, is_complete=True, attempts={}, pairs=pairs)
    paths = write_tables(results, folder, {})
    return "\n".join([text, terminal_table(results, {}), *(path.read_text(encoding="utf-8") for path in paths)])


# -- a class -----------------------------------------------------------------------------------------------------------
BROKEN = {  # files that cannot be graded, and what their rows say
    "cells": "The notebook has 100,0",
    "cut_off": "no JSON in or after cell ",
    "enormous_output": "The file has 30 MB, more than 10 MB",
    "folder": "It is a folder",
    "link": "a link to another file",
    "nested_json": "nested too deeply",
    "pipe": "It is a pipe",
    "utf_16": "no UTF-8 text",
    "empty": "The file is empty.",
    "text": "the file is no JSON",
    "binary": "no JSON",
    "essay.docx": "no JSON",
    "huge": "3,000 MB",
    "nested": "Nothing of lab",
}
READABLE = {"statements", "nested_prints", "chain_of_aliases", "flagged_lines", "null_bytes", "surrogates"}
NAMED = {"=1+1": "=1+1", "<b>bold": "<b>bold", "eve\x1b[2J\n": "eve\\x1b[2J\\n", os.fsdecode(b"\xff"): "\\udcff"}


@pytest.fixture
def without_ranks(monkeypatch):
    """Every task that can be run passes, without being run."""

    def passed(self, lab_task):
        return GradedTask(key=lab_task.key, state="passed", points=lab_task.points, max_points=lab_task.points)

    monkeypatch.setattr(grade._SubmissionGrader, "_grade_task", passed)


@pytest.mark.timeout(400)
def test_broken_files_have_their_reason_and_fifty_others_are_graded(tmp_path, without_ranks, capsys):
    folder, out = tmp_path / "class", tmp_path / "out"
    folder.mkdir()
    for name in (BROKEN.keys() | READABLE) & HOSTILE.keys():
        hostile.write(name, folder)
    (folder / "empty.ipynb").touch()
    (folder / "text.ipynb").write_text("print('this is no JSON')")
    (folder / "binary.ipynb").write_bytes(bytes(range(256)))
    (folder / "essay.docx").write_bytes(b"PK")
    (folder / "huge.ipynb").touch()
    os.truncate(folder / "huge.ipynb", 3_000_000_000)
    hostile.save("nested", folder, {"cells": [{"cell_type": "code", "source": 3, "metadata": []}]})
    ordinary = [f"learner-{number}" for number in range(50 - len(READABLE) - len(NAMED))]
    for name in (*NAMED, *ordinary):
        hostile.save(name, folder, notebooks.handed_in({"03.average": notebooks.AVERAGE}))
    (folder / "learner-0.ipynb").rename(folder / "learner-0.ipynb.txt")  # as a browser may name it
    options = ["--lab", "03_ddp", "--out", str(out), *notebooks.ANY_ISOLATION]
    assert cli.main([str(folder), *options]) == 0
    rows = {one.learner: one for one in open_state(out, None).done.values()}
    assert len(rows) == len(BROKEN) + 50
    for name, says in BROKEN.items():
        assert rows[name].points == 0 and says in rows[name].problems[0], rows[name]
        assert {task.state for task in rows[name].tasks} == {"not graded"}
    for name in (*READABLE, *NAMED.values(), *ordinary[1:], "learner-0.ipynb.txt"):
        assert rows[name].points == 21, rows[name]
    assert not any(rows[name].problems for name in ordinary[1:])
    assert_harmless(capsys.readouterr().out, out)


def assert_harmless(printed: str, out) -> None:
    """What a teacher's terminal, browser and spreadsheet get."""
    assert "\x1b" not in printed and "eve\\x1b[2J\\n" in printed and "\\udcff" in printed
    assert "and 2,994 more" in printed and max(map(len, printed.splitlines())) < 400
    text = (out / "report.html").read_text(encoding="utf-8")
    assert "\x1b" not in text and "&lt;b&gt;bold" in text and "<b>bold" not in text
    for name in ("grades.csv", "moodle.csv", "canvas.csv"):
        with open(out / name, newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
        assert len(rows) >= 61 and not any(cell[:1] in tuple("=+-@") for row in rows for cell in row)


# -- as they are graded ------------------------------------------------------------------------------------------------
@pytest.mark.slow  # forty sandboxes with ranks
@pytest.mark.timeout(3600)
def test_a_trick_earns_nothing_and_costs_no_other_row(tmp_path, settings, lab_03):
    folder = tmp_path / "class"
    folder.mkdir()
    for name in HOSTILE:
        hostile.write(name, folder)
    notebooks.write(folder / "right.ipynb", notebooks.handed_in({"03.average": notebooks.AVERAGE}))
    own = settings(folder, labs=(labs.lab_with_task(lab_03, "03.average"),))
    rows = {one.learner: one for one in notebooks.graded(folder, own, tmp_path / "out")[0]}
    assert rows["right"].points == 2 and len(rows) == 41
    for name, one in HOSTILE.items():
        assert rows[name].points == (2 if one.passes else 0), (name, rows[name])
        told = " ".join([*rows[name].problems, *(task.text for task in rows[name].tasks)])
        assert one.says in told or name == "flagged_lines", (name, told)


def test_a_reader_that_dies_costs_one_row(tmp_path, settings, monkeypatch):
    """As a parser would that a file has brought to fall."""
    notebooks.write(tmp_path / "ada.ipynb", notebooks.lab())
    monkeypatch.setattr("helpers.classroom.reading.READER", "helpers.classroom.no_such_module")
    monkeypatch.setattr("helpers.classroom.sandbox.FORKS", False)
    result = grade_one(*find_submissions([tmp_path]), settings(tmp_path))
    assert "The process that reads the file was ended" in result.problems[0] and result.points == 0
