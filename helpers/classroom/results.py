"""Records of what grading one submission gave: its tasks, its written answers, and the flags for a teacher to read.

The records go to JSON and back, so that an interrupted run can resume. A flag takes no points; the verdict alone gives
points. Each flag says how certain it is:

certain   the learner's own line names it, or what the ranks did proves it
likely    honest answers do not go this way
look      unusual, and perhaps honest
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import msgspec

from helpers.classroom.plain_text import counted, one_line, plain_lines

CERTAINTIES = CERTAIN, LIKELY, LOOK = "certain", "likely", "look"  # the most certain first


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
    """The most certain flags first; of flags that differ only in their certainty, only the most certain one stays."""
    most_certain: dict[tuple[str, str, str], Flag] = {}
    for flag in sorted(flags, key=lambda flag: CERTAINTIES.index(flag.certainty)):
        most_certain.setdefault((flag.key, flag.location, flag.reason), flag)
    return tuple(most_certain.values())


STATES = ("passed", "failed", "missing", "not graded")


@dataclass(frozen=True, kw_only=True)
class GradedTask:
    """One task of a submission.

    key: of the task, such as "03.average".
    state: one of STATES. "failed" means that the check says no, "missing" that the notebook does not define the task,
    and "not graded" that nothing could be run.
    points, max_points: what the task gave and what it can give. text: the verdict, as the learner would read it.
    mistake: the key of the known mistake that the check recognised, None if it recognised none. hint: for that mistake.
    number: of the learner's own, which an answer to 10.patients names; None for other tasks.
    """

    key: str
    state: str
    points: float = 0.0
    max_points: float
    text: str = ""
    mistake: str | None = None
    hint: str = ""
    number: int | None = None
    flags: tuple[Flag, ...] = ()


@dataclass(frozen=True, kw_only=True)
class WrittenAnswer:
    """An answer in words, which a person grades. grade_id: nbgrader's name for the cell that asks the question."""

    grade_id: str
    max_points: float
    text: str

    @property
    def is_empty(self) -> bool:
        """Whether the learner wrote nothing."""
        return self.text.strip() in ("", "YOUR ANSWER HERE")


@dataclass(frozen=True, kw_only=True)
class AnswerPieces:
    """What a learner wrote for a task, cut into pieces that similarity.py compares.

    key: of the task. text: the beginning of the answer. pieces: how often each piece stands in the answer.
    """

    key: str
    text: str
    pieces: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class GradedSubmission:
    """What grading one learner's notebook gave. Every text in it is safe to print (`cleaned`).

    learner: the id by which the learner is known, from the name of the file or folder. file: its name.
    name, source: the learner's name, and "moodle" or "canvas" for the system that the file came from; "" where the name
    of the file does not tell. digest: the hash of the file. lab: "03_ddp", or "" if it is not known.
    problems: sentences about parts that could not be graded. notes: sentences that a teacher should know.
    more_flags: certainty to the number of flags beyond those that the tasks have, which only count.
    pieces: the pieces of the answers, to be compared with the answers of others.
    seconds: that grading took. peak_bytes: the most memory that the sandbox used, 0 if nothing was run.
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
    more_flags: Mapping[str, int] = field(default_factory=dict)
    pieces: tuple[AnswerPieces, ...] = ()
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


def cleaned(result: GradedSubmission) -> GradedSubmission:
    """The result with every text of the learner safe to print, and at most MAX_LISTED problems."""
    problems = counted([one_line(text) for text in result.problems])
    return replace(
        result,
        file=one_line(result.file),
        tasks=tuple(map(_cleaned_task, result.tasks)),
        written=tuple(replace(one, text=plain_lines(one.text)) for one in result.written),
        problems=tuple(problems),
        notes=tuple(map(one_line, result.notes)),
        pieces=tuple(replace(one, text=plain_lines(one.text)) for one in result.pieces),
    )


def _cleaned_task(task: GradedTask) -> GradedTask:
    flags = (replace(one, location=one_line(one.location, 100), reason=one_line(one.reason)) for one in task.flags)
    return replace(task, text=plain_lines(task.text), hint=plain_lines(task.hint), flags=tuple(flags))


def submission_to_json(result: GradedSubmission) -> dict[str, Any]:
    """The submission as plain data for one line of the state file."""
    return asdict(result)


def submission_from_json(fields: Mapping[str, Any]) -> GradedSubmission:
    """The submission that `submission_to_json` wrote. Raises ValueError for any other data."""
    return msgspec.convert(fields, GradedSubmission)


_LOCATION = re.compile(r"cell (?P<cell>[^,:]+)(, line (?P<line>\d+))?")


def flags_of(result: GradedSubmission) -> tuple[Flag, ...]:
    """The flags of a submission, the most certain first.

    A line that several tasks use has one flag, whose `key` lists the keys of all these tasks.
    """
    keys_of: dict[Flag, list[str]] = {}  # a flag without its key -> the keys of all tasks that have this flag
    for task in result.tasks:
        for flag in task.flags:
            keys_of.setdefault(replace(flag, key=""), []).append(flag.key)
    return sorted_flags(replace(flag, key=", ".join(keys)) for flag, keys in keys_of.items())


MAX_LOCATIONS = 6  # places that the summary of flags names for each certainty


def flags_summary(flags: Sequence[Flag], more_flags: Mapping[str, int] | None = None) -> str:
    """How many flags there are and where, as in "1 certain (average:4), 2 look (start:2, start:9)"; "–" for none.

    more_flags: as in GradedSubmission.
    """
    parts = []
    for certainty in CERTAINTIES:
        of_this = [flag for flag in flags if flag.certainty == certainty]
        more = (more_flags or {}).get(certainty, 0)
        locations = sorted({short_location(flag) for flag in of_this if flag.location}, key=_by_line)
        named = [one_line(location, 30) for location in locations[:MAX_LOCATIONS]]
        unnamed = len(locations) - len(named) + more
        if named and unnamed:
            named[-1] += f" and {unnamed:,} more"
        if of_this or more:
            parts.append(f"{len(of_this) + more:,} {certainty}" + (f" ({', '.join(named)})" if named else ""))
    return ", ".join(parts) or "–"


def kept_flags(flags: Iterable[Flag], max_flags: int) -> tuple[tuple[Flag, ...], dict[str, int]]:
    """At most `max_flags` flags, the most certain first, and how many others there are of each certainty.

    A line that several tasks use counts once, as in `flags_of`, and it stays with all of its tasks.
    """
    kept, places = [], {}  # places: what a flag says without its task
    for flag in sorted_flags(flags):
        place = replace(flag, key="")
        if places.setdefault(place, len(places)) < max_flags:
            kept.append(flag)
    others = Counter(place.certainty for place, number in places.items() if number >= max_flags)
    return tuple(kept), dict(others)


def _by_line(location: str) -> tuple[str, int]:
    """The sort key of "average:12", so that line 12 comes after line 4."""
    cell, _, line = location.partition(":")
    return cell, int(line) if line.isdigit() else 0


def short_location(flag: Flag) -> str:
    """The flag's location as "average:4" for "cell average, line 4", and "average" where it names no line."""
    found = _LOCATION.fullmatch(flag.location)
    if found is None:
        return flag.location
    return f"{found['cell']}:{found['line']}" if found["line"] else found["cell"]
