"""Whiteboard drills: "write it in 15 minutes". Most are tasks of a lab, some stand here alone; the check is handed in.

A Drill is data from `drills.yaml`. An Attempt is one try at it: a clock, answers, what the check said. Nothing here
imports torch: `check` is any function `(key, answer) -> verdict`, such as `helpers.grading.grade`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.interview import bank_file
from helpers.interview.cards import Cell, Source, topic_of
from helpers.interview.links import cell_address, place
from helpers.interview.stopwatch import Now, Stopwatch, clock_text
from helpers.interview.words import say
from helpers.learner import progress, words
from helpers.learner.words import Words

FILE = Path(__file__).with_name("drills.yaml")
FIELDS = ("key", "minutes", "title", "prompt", "counts", "stub", "explained_by")
OWN = ("topic", "answer")  # of a drill that is no task of a lab
Judge = Callable[[str, Any], Any]


@dataclass(frozen=True, kw_only=True)
class Drill:
    """One thing to write. key: of the task; minutes: to write it in; counts: what is checked. topic: as of a card.

    stub: Python text that runs as it is: imports, what is given, and the signature to fill. answer: a right one, of a
    drill that is no task of a lab; "" where the lab has it.
    """

    key: str
    minutes: int
    title: Words
    prompt: Words
    counts: tuple[Words, ...]
    stub: str
    explained_by: Cell | Source
    topic: str
    answer: str = ""

    @property
    def name(self) -> str:
        """Of the function or class to write: the last one that the stub defines at its left edge."""
        lines = [line.split() for line in self.stub.splitlines() if line.startswith(("def ", "class "))]
        return lines[-1][1].partition("(")[0].rstrip(":")

    def places(self, base: str = "", *, language: str | None = None) -> tuple[tuple[str, str], ...]:
        """Text and address of what explains it, and of the lab's task, if it is one. base: as in links.link."""
        explained = place(self.explained_by, base, language=language)
        if self.answer:
            return (explained,)
        lab = f"labs/{self.explained_by.notebook}.ipynb"
        task = say("drill.place", language, key=self.key)
        address = cell_address(lab, f"{self.key.partition('.')[2]}-task", base)
        return explained, (task, address)


def drills() -> tuple[Drill, ...]:
    """All of them, by chapter, then those that stand in no lab."""
    return _read(FILE)


def drill(key: str) -> Drill:
    """The drill of the task "03.average". Raises ValueError, with the keys there are, for another."""
    found = {one.key: one for one in drills()}
    if key not in found:
        raise ValueError(f"there is no drill {key!r}; choose one of {', '.join(found)}")
    return found[key]


@functools.cache
def _read(path: Path) -> tuple[Drill, ...]:
    return bank_file.read_entries(path, "drills", _drill, lambda drill: [drill.key])


def _drill(fields: Any, where: str) -> Drill:
    bank_file.check_fields(fields, {"required": FIELDS, "known": FIELDS + OWN}, where, "drill")
    where = f"{where} ({fields['key']})"
    given = [name for name in OWN if fields.get(name)]
    if given and len(given) < len(OWN):
        raise ValueError(
            f"{where}: it has `{given[0]}` alone; a drill of no lab has `topic` and `answer`, others neither"
        )
    explained_by = bank_file.read_shown_by(fields["explained_by"], where)
    return Drill(
        key=fields["key"],
        minutes=int(fields["minutes"]),
        title=bank_file.read_text(fields["title"], where, "title"),
        prompt=bank_file.read_text(fields["prompt"], where, "prompt"),
        counts=tuple(bank_file.read_text(one, where, "counts") for one in fields["counts"]),
        stub=fields["stub"],
        explained_by=explained_by,
        topic=fields.get("topic") or topic_of(explained_by.notebook),
        answer=fields.get("answer", ""),
    )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one answer came to. seconds: since the clock began, None without one; note: what kept it from the file."""

    key: str
    passed: bool
    seconds: float | None
    in_time: bool | None
    said: str
    text: str
    note: str = ""

    def __repr__(self) -> str:
        return "\n".join(filter(None, (self.said, self.text, self.note)))


class Attempt:
    """One try at a drill. `begin()`, then `submit(answer)` until it passes; over the limit is told, not cut off.

    check: `(key, answer) -> verdict`, where the verdict has `passed` and `text(language)`; an exception that carries a
    `verdict` counts as that. path: of the progress file, if not the one in the home. now: as in Stopwatch.
    """

    def __init__(
        self,
        drill: Drill,
        check: Judge | None = None,
        *,
        language: str | None = None,
        path: str | os.PathLike | None = None,
        now: Now | None = None,
    ):
        self.drill, self._check, self.language, self._path = drill, check, words.language(language), path
        self.watch = Stopwatch(60.0 * drill.minutes, now)
        self.outcomes: list[Outcome] = []

    def begin(self) -> Attempt:
        """Start the clock; a second call changes nothing."""
        self.watch.begin()
        return self

    @property
    def passed(self) -> bool:
        return any(outcome.passed for outcome in self.outcomes)

    def submit(self, answer: Any) -> Outcome:
        """Check an answer and note it. The clock stands still once one has passed.

        Raises ValueError where no check was handed in.
        """
        if self._check is None:
            raise ValueError("nothing here can check an answer; hand in a check, such as helpers.grading.grade")
        seconds = self.watch.seconds if self.watch.began else None  # the check's own seconds are not the learner's
        verdict = _verdict(self._check, self.drill.key, answer)
        passed = bool(getattr(verdict, "passed", verdict))
        in_time = None if seconds is None else seconds <= self.watch.limit
        if passed:
            self.watch.stop()
        outcome = Outcome(
            key=self.drill.key,
            passed=passed,
            seconds=seconds,
            in_time=in_time,
            said=_said(verdict, self.language),
            text=self._text(passed, seconds),
            note=self._note(verdict, passed, seconds, in_time),
        )
        self.outcomes.append(outcome)
        return outcome

    def _note(self, verdict: Any, passed: bool, seconds: float | None, in_time: bool | None) -> str:
        """Keep the attempt as an attempt at the lab's task; "" where that went well, or where it never ran."""
        if not getattr(verdict, "was_tried", True):
            return ""
        more = {name: getattr(verdict, name) for name in ("mistake", "seed") if hasattr(verdict, name)}
        if seconds is not None:
            more |= {"drill": True, "seconds": round(seconds, 1), "in_time": in_time}
        return progress.record_quietly("check", self.drill.key, passed, path=self._path, **more) or ""

    def _text(self, passed: bool, seconds: float | None) -> str:
        """The time, in words; "" without a clock."""
        if seconds is None:
            return ""
        limit = self.watch.limit
        name = f"drill.{'passed' if passed else 'open'}_{'in_time' if seconds <= limit else 'late'}"
        return say(
            name,
            self.language,
            used=clock_text(seconds),
            limit=clock_text(limit),
            left=clock_text(limit - seconds),
            over=_over(seconds, limit),
        )


def _over(seconds: float, limit: float) -> str:
    return clock_text(max(0.0, seconds - limit))


def _verdict(check: Judge, key: str, answer: Any) -> Any:
    try:
        return check(key, answer)
    except Exception as error:
        if not hasattr(error, "verdict"):
            raise
        return error.verdict


def _said(verdict: Any, language: str) -> str:
    """What the answer printed, then the verdict as text, in the language if it knows several."""
    text, printed = getattr(verdict, "text", None), getattr(verdict, "printed", "")
    return printed + (text(language) if callable(text) else "" if isinstance(verdict, bool) else str(verdict))
