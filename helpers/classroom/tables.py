"""CSV files for gradebooks, keyed by learner.

grades.csv   everything: learner, name, file, total, attempts, each task, each answer in words (empty: for a person),
             remarks
moodle.csv   for Moodle's Grades > Import > CSV file: map "ID number" or "Username" to the user, the others to
             grade items; "Identifier" and "Grade" are those of an assignment's offline grading worksheet
canvas.csv   for Canvas's Gradebook > Import: Student, ID, SIS User ID, SIS Login ID, Section, then one assignment, with
             the row Points Possible
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from helpers.classroom import attempts
from helpers.classroom.flagged import flags_of
from helpers.classroom.results import Result


def write_tables(results: Sequence[Result], out: Path, tried: Mapping[str, dict[str, int]]) -> list[Path]:
    """The three files; their paths. tried: learner to task to attempts, of those who told."""
    rows = {"grades.csv": grades(results, tried), "moodle.csv": moodle(results), "canvas.csv": canvas(results)}
    for name, lines in rows.items():
        with open(out / name, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([_safe(cell) for cell in line] for line in lines)
    return [out / name for name in rows]


def grades(results: Sequence[Result], tried: Mapping[str, dict[str, int]]) -> Iterable[list]:
    keys, written = task_keys(results), written_ids(results)
    yield ["learner", "name", "file", "lab", "points", "of", "attempts", *keys, *written, "remarks"]
    for one in results:
        points = {task.key: task.points for task in one.tasks}
        remarks = " ".join([*one.problems, *(flag.text for flag in flags_of(one)), *one.notes])
        tasks = [_number(points[key]) if key in points else "" for key in keys]
        totals = [_number(one.points), _number(one.most), attempts.in_short(tried.get(one.learner))]
        yield [one.learner, one.name, one.file, one.lab, *totals, *tasks, *["" for _ in written], remarks]


def moodle(results: Sequence[Result]) -> Iterable[list]:
    keys = task_keys(results)
    yield ["Identifier", "Full name", "ID number", "Username", "Grade", "Maximum grade", *keys]
    for one in results:
        points = {task.key: _number(task.points) for task in one.tasks}
        is_from_moodle = one.source == "moodle"
        identifier = f"Participant {one.learner}" if is_from_moodle else ""
        own = "" if is_from_moodle else one.learner
        total = [_number(one.points), _number(one.most)]
        yield [identifier, one.name, own, own, *total, *(points.get(key, "") for key in keys)]


def canvas(results: Sequence[Result]) -> Iterable[list]:
    labs = sorted({one.lab for one in results if one.lab})
    most = {lab: max(one.most for one in results if one.lab == lab) for lab in labs}
    yield ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", *labs]
    yield ["    Points Possible", "", "", "", "", *(_number(most[lab]) for lab in labs)]
    for one in results:
        is_from_canvas = one.source == "canvas"
        ids = [one.learner, "", ""] if is_from_canvas else ["", one.learner, one.learner]
        yield [one.name or one.learner, *ids, "", *(_number(one.points) if lab == one.lab else "" for lab in labs)]


def task_keys(results: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(task.key for one in results for task in one.tasks))


def written_ids(results: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(f"{one.lab}.{answer.grade_id}" for one in results for answer in one.written))


def _number(points: float) -> str:
    return f"{points:g}"


def _safe(cell: str) -> str:
    """A spreadsheet takes what begins with = + - @ for a formula; learners choose their file names."""
    return "'" + cell if cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell
