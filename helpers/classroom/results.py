"""What came out for one submission: plain records that go to JSON and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from helpers.classroom.flags import Flag

STATES = ("passed", "failed", "missing", "not graded")


@dataclass(frozen=True, kw_only=True)
class Graded:
    """One task. text: the verdict. mistake: the hint's key. flags: for the teacher to read; they take no points.

    state: "passed"; "failed", the check says no; "missing", nothing defines it; "not graded", nothing could be run.
    """

    key: str
    state: str
    points: float
    most: float
    text: str = ""
    mistake: str | None = None
    hint: str = ""
    flags: tuple[Flag, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Written:
    """An answer in words, for a person to grade."""

    grade_id: str
    most: float
    text: str

    @property
    def is_empty(self) -> bool:
        return self.text.strip() in ("", "YOUR ANSWER HERE")


@dataclass(frozen=True, kw_only=True)
class Result:
    """problems: what kept parts from being graded. notes: good to know."""

    learner: str
    file: str
    name: str = ""
    source: str = ""
    digest: str = ""
    lab: str = ""
    tasks: tuple[Graded, ...] = ()
    written: tuple[Written, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    peak_bytes: int = 0

    @property
    def points(self) -> float:
        return sum(task.points for task in self.tasks)

    @property
    def most(self) -> float:
        """Of what the grader gives; points for answers in words come on top."""
        return sum(task.most for task in self.tasks)


def to_json(result: Result) -> dict[str, Any]:
    return asdict(result)


def from_json(fields: Mapping[str, Any]) -> Result:
    """Raises TypeError or KeyError for something else."""
    fields = dict(fields)
    tasks = tuple(_graded(task) for task in fields.pop("tasks"))
    written = tuple(Written(**answer) for answer in fields.pop("written"))
    lists = {name: tuple(fields.pop(name)) for name in ("problems", "notes")}
    return Result(**fields, **lists, tasks=tasks, written=written)


def _graded(fields: Mapping[str, Any]) -> Graded:
    flags = tuple(Flag(**flag) for flag in fields.get("flags", ()))
    return Graded(**{**fields, "flags": flags})
