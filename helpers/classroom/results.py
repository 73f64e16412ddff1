"""Records of what grading one submission gave: its tasks, its written answers, and the flags for a teacher to read.

The records go to JSON and back, so that an interrupted run can resume. A flag takes no points; the verdict alone gives
points. It says how certain it is:

certain   the learner's own line names it, or what the ranks did proves it
likely    honest answers do not go this way
look      unusual, and perhaps honest
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

CERTAINTIES = CERTAIN, LIKELY, LOOK = "certain", "likely", "look"


@dataclass(frozen=True, kw_only=True)
class Flag:
    """Something in an answer that a teacher should read.

    key: of the task. location: "cell average, line 4", or "" if no line did it. reason: a sentence. certainty: one of
    CERTAINTIES.
    """

    key: str
    location: str
    reason: str
    certainty: str

    @property
    def text(self) -> str:
        """The flag in one line."""
        prefix = f"{self.location}: " if self.location else ""
        return f"{prefix}{self.reason} ({self.certainty})"


def sorted_flags(flags: Iterable[Flag]) -> tuple[Flag, ...]:
    """The most certain flags first; of flags that differ only in their certainty, the most certain one."""
    first: dict[tuple[str, str, str], Flag] = {}
    for flag in sorted(flags, key=lambda flag: CERTAINTIES.index(flag.certainty)):
        first.setdefault((flag.key, flag.location, flag.reason), flag)
    return tuple(first.values())


STATES = ("passed", "failed", "missing", "not graded")


@dataclass(frozen=True, kw_only=True)
class GradedTask:
    """One task of a submission. text: the verdict. mistake: the key of the hint, if a known mistake was recognised.

    state: "passed"; "failed", the check says no; "missing", the notebook does not define it; "not graded", nothing
    could be run.
    """

    key: str
    state: str
    points: float
    max_points: float
    text: str = ""
    mistake: str | None = None
    hint: str = ""
    flags: tuple[Flag, ...] = ()


@dataclass(frozen=True, kw_only=True)
class WrittenAnswer:
    """An answer in words, which a person grades."""

    grade_id: str
    max_points: float
    text: str

    @property
    def is_empty(self) -> bool:
        """Whether the learner wrote nothing."""
        return self.text.strip() in ("", "YOUR ANSWER HERE")


@dataclass(frozen=True, kw_only=True)
class GradedSubmission:
    """What grading one learner's notebook gave.

    name, source: the learner's name and the system that the file came from, where the file name tells. digest: the hash
    of the file. problems: sentences about parts that could not be graded. notes: sentences that a teacher should know.
    """

    learner: str
    file: str
    name: str = ""
    source: str = ""
    digest: str = ""
    lab: str = ""
    tasks: tuple[GradedTask, ...] = ()
    written: tuple[WrittenAnswer, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    peak_bytes: int = 0

    @property
    def points(self) -> float:
        """The points of all tasks."""
        return sum(task.points for task in self.tasks)

    @property
    def max_points(self) -> float:
        """The points that the grader can give; points for answers in words come on top."""
        return sum(task.max_points for task in self.tasks)


def submission_to_json(result: GradedSubmission) -> dict[str, Any]:
    """The submission as plain data for one line of the state file."""
    return asdict(result)


def submission_from_json(fields: Mapping[str, Any]) -> GradedSubmission:
    """The submission that `submission_to_json` wrote. Raises TypeError or KeyError for any other data."""
    fields = dict(fields)
    tasks = tuple(_task_from_json(task) for task in fields.pop("tasks"))
    written = tuple(WrittenAnswer(**answer) for answer in fields.pop("written"))
    lists = {name: tuple(fields.pop(name)) for name in ("problems", "notes")}
    return GradedSubmission(**fields, **lists, tasks=tasks, written=written)


def _task_from_json(fields: Mapping[str, Any]) -> GradedTask:
    flags = tuple(Flag(**flag) for flag in fields.get("flags", ()))
    return GradedTask(**{**fields, "flags": flags})


_LOCATION = re.compile(r"cell (?P<cell>[^,:]+)(, line (?P<line>\d+))?")


def flags_of(result: GradedSubmission) -> tuple[Flag, ...]:
    """The flags of a submission, the most certain first.

    A line that several tasks use has one flag with all their keys.
    """
    keys: dict[Flag, list[str]] = {}
    for task in result.tasks:
        for flag in task.flags:
            keys.setdefault(replace(flag, key=""), []).append(flag.key)
    return sorted_flags(replace(flag, key=", ".join(of)) for flag, of in keys.items())


def flags_summary(flags: Sequence[Flag]) -> str:
    """How many flags there are and where, as in "1 certain (average:4), 2 look (start:2, start:9)"; "–" for none."""
    parts = []
    for certainty in CERTAINTIES:
        of_this = [flag for flag in flags if flag.certainty == certainty]
        locations = sorted({short_location(flag) for flag in of_this if flag.location}, key=_by_line)
        parts += (
            [f"{len(of_this)} {certainty}" + (f" ({', '.join(locations)})" if locations else "")] if of_this else []
        )
    return ", ".join(parts) or "–"


def _by_line(location: str) -> tuple[str, int]:
    cell, _, line = location.partition(":")
    return cell, int(line) if line.isdigit() else 0


def short_location(flag: Flag) -> str:
    """The flag's location as "average:4" for "cell average, line 4"."""
    found = _LOCATION.fullmatch(flag.location)
    return ":".join(filter(None, (found["cell"], found["line"]))) if found else flag.location
