"""The table at the end of a run: a line a learner, with points, tasks, flags and attempts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from helpers.classroom import attempts, flagged
from helpers.classroom.results import Result
from helpers.classroom.tables import task_keys
from helpers.learner.words.wrapping import width

MARKS = {"passed": "✓", "failed": "✗", "missing": "–", "not graded": "?"}
Attempts = Mapping[str, dict[str, int]]


def table(results: Sequence[Result], tried: Attempts) -> str:
    """tried: learner to task to attempts, of those who told."""
    keys = task_keys(results)
    head = ["learner", "points", *(_short(key, keys) for key in keys), "attempts", "flags"]
    rows = [head, *(_row(one, keys, tried) for one in results)]
    widths = [max(width(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(_line(row, widths) for row in rows)


def _row(one: Result, keys: Sequence[str], tried: Attempts) -> list[str]:
    marks = {task.key: MARKS.get(task.state, "!") for task in one.tasks}
    points = f"{one.points:g}/{one.most:g}" if one.tasks else "?"
    told = [attempts.in_short(tried.get(one.learner)), flagged.in_short(flagged.flags_of(one))]
    return [_printable(one.name or one.learner), points, *(marks.get(key, "") for key in keys), *map(_printable, told)]


def _short(key: str, keys: Sequence[str]) -> str:
    """ "average", where all are of one lab."""
    lab, _, name = key.partition(".")
    return name if all(other.startswith(f"{lab}.") for other in keys) else key


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = (cell + " " * (room - width(cell)) for cell, room in zip(row, widths, strict=True))
    return "  ".join(cells).rstrip()


def _printable(text: str) -> str:
    """Learners choose the names of their files, and a terminal obeys some characters."""
    return "".join(one if one.isprintable() else "?" for one in text)
