"""Defines the whiteboard drills ("write it in 15 minutes") and runs one attempt at a drill against a stopwatch.

A `Drill` is data from `drills.yaml`; most drills are tasks of a lab, which the lab's check judges. An `Attempt` has a
clock, the answers and what the check said. Nothing here imports torch: the check is any function `(key, answer) ->
verdict` that the caller passes, such as `helpers.grading.grade`. `Words` is a text in two languages, and `words(key,
language, **values)` a sentence of the quiz.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from helpers.interview.card_html import cell_address, source_link
from helpers.interview.cards import ShownBy, topic_of, words
from helpers.interview.steps import Ask, ClockState, Finished, Option, Steps, Talk, Tell, TextPart, labels
from helpers.learner import progress
from helpers.learner.progress import FilePath
from helpers.learner.words import Words
from helpers.learner.words import language as chosen_language
from helpers.learner.yaml_file import Fields, read_list, read_record

FILE = Path(__file__).with_name("drills.yaml")
Judge = Callable[[str, Any], Any]  # (key of the drill, answer) -> verdict
Now = Callable[[], datetime]


# -- the clock -------------------------------------------------------------------------------------------------------
def utc_now() -> datetime:
    """The time of this machine, with its time zone."""
    return datetime.now(UTC)


class Stopwatch:
    """Measures the time since `begin()` against a limit in seconds. It never stops anybody.

    now: returns the time as a datetime with a time zone; the machine's clock if None.
    """

    def __init__(self, limit: float, now: Now | None = None):
        self.limit, self._now = limit, now or utc_now
        self.began: datetime | None = None
        self.ended: datetime | None = None

    def begin(self) -> None:
        """Start, once; a second call changes nothing."""
        self.began = self.began or self._now()

    def stop(self) -> None:
        """Stop, once."""
        if self.began is not None:
            self.ended = self.ended or self._now()

    @property
    def seconds(self) -> float:
        """From the beginning to the stop, or to now; 0 before. Never negative, even if the machine's clock jumps."""
        if self.began is None:
            return 0.0
        return max(0.0, ((self.ended or self._now()) - self.began).total_seconds())

    @property
    def is_over(self) -> bool:
        return self.seconds > self.limit

    @property
    def state(self) -> ClockState:
        """What a step tells of this clock."""
        began, ended = (when and when.timestamp() for when in (self.began, self.ended))
        return ClockState(limit=self.limit, began=began, ended=ended)


def clock_text(seconds: float) -> str:
    """Seconds as on a clock: 75 as "1:15"."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02}"


# -- drills ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Drill:
    """One program to write.

    key: of the task, such as "03.average". minutes: how long it may take. prompt: the task. counts: what counts, that
    is, what the check looks at. stub: Python text that runs as it is, with the imports, what is given, and the
    signature to fill. explained_by: where the course explains it. topic: by which drills are chosen, such as "ddp".
    answer: a right one, if the drill is no task of a lab; "" where the lab has it. A drill that is no task of a lab has
    `topic` and `answer` in the YAML, and others neither.
    """

    key: str
    minutes: int
    title: Words
    prompt: Words
    counts: tuple[Words, ...]
    stub: str
    explained_by: ShownBy
    topic: str = ""
    answer: str = ""

    @property
    def name(self) -> str:
        """The name of the function or class to write: the last one that the stub defines at its left edge."""
        lines = [line.split() for line in self.stub.splitlines() if line.startswith(("def ", "class "))]
        return lines[-1][1].partition("(")[0].rstrip(":")

    def links(self, base: str = "", *, language: str | None = None) -> tuple[tuple[str, str], ...]:
        """Text and address of what explains it, and of the lab's task if it is one.

        base: the way from the page to the folder of the chapters: "" in a chapter, "../" in a lab.
        """
        explained = source_link(self.explained_by, base, language=language)
        if self.answer:
            return (explained,)
        lab = f"labs/{self.explained_by.notebook}.ipynb"
        task = words("drill.place", language, key=self.key)
        address = cell_address(lab, f"{self.key.partition('.')[2]}-task", base)  # the cell with the tag "average-task"
        return explained, (task, address)


def drill_parts(drill: Drill, language: str) -> tuple[TextPart, ...]:
    """The task, what counts, and the program to begin with."""
    counts = tuple(text.in_(language) for text in drill.counts)
    return (
        TextPart(name="task", label=drill.title.in_(language), text=drill.prompt.in_(language)),
        TextPart(name="counts", label=labels("counts", language), items=counts),
        TextPart(name="stub", label=labels("given", language), text=drill.stub),
    )


def drills() -> tuple[Drill, ...]:
    """All drills, by chapter, then those that belong to no lab."""
    return _read_file(FILE)


def drill(key: str) -> Drill:
    """The drill of the task "03.average". Raises ValueError, with the known keys, for another one."""
    by_key = {one.key: one for one in drills()}
    if key not in by_key:
        raise ValueError(f"there is no drill {key!r}; choose one of {', '.join(by_key)}")
    return by_key[key]


@functools.cache
def _read_file(path: Path) -> tuple[Drill, ...]:
    return read_list(path, "drills", _read_drill, lambda one: [one.key])


def _read_drill(fields: Fields) -> Drill:
    """One drill of the file. The topic of one that is a task of a lab is that of its chapter."""
    one = read_record(Drill, fields)
    if bool(one.topic) != bool(one.answer):
        given = "topic" if one.topic else "answer"
        raise ValueError(
            f"{fields.where} ({one.key}): it has `{given}` alone; a drill of no lab has `topic` and `answer`, others "
            "neither"
        )
    return replace(one, topic=one.topic or topic_of(one.explained_by.notebook))


# -- an attempt ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class DrillOutcome:
    """The result of checking one answer.

    seconds: since the clock began, None without a clock. in_time: whether that was within the limit. output: what the
    answer printed, with the verdict. text: the time in words. note: why the attempt could not be noted in the progress
    file, or "".
    """

    key: str
    passed: bool
    seconds: float | None
    in_time: bool | None
    output: str
    text: str
    note: str = ""

    def __repr__(self) -> str:
        return "\n".join(filter(None, (self.output, self.text, self.note)))


class Attempt(Talk):
    """One attempt at a drill: `begin()`, then `submit(answer)` until it passes. Nothing is cut off at the time limit.

    `steps()` is the drill as a conversation, and `write_steps()` the part of it that a mock interview has as well.

    check: `(key, answer) -> verdict`, where the verdict has `passed` and `text(language)`, or is a bool. An exception
    that carries a `verdict` counts as that verdict. path: of the progress file, if not the one in the home. now:
    returns the time; the machine's clock if None.
    """

    kind = "drill"

    def __init__(
        self, drill: Drill, check: Judge | None = None, *, language: str | None = None, path: FilePath = None,
        now: Now | None = None,
    ):  # fmt: skip
        self.drill, self._check, self.language, self._path = drill, check, chosen_language(language), path
        self.watch = Stopwatch(60.0 * drill.minutes, now)
        self.outcomes: list[DrillOutcome] = []

    def begin(self) -> Attempt:
        """Start the clock; a second call changes nothing."""
        self.watch.begin()
        return self

    @property
    def passed(self) -> bool:
        """Whether any answer has passed."""
        return any(outcome.passed for outcome in self.outcomes)

    def steps(self) -> Steps:
        """The drill until it is passed or given up, then a right answer if no lab has it, the time, and the links."""
        try:
            yield from self.write_steps()
            yield Tell(parts=tuple(replace(part, is_folded=False) for part in self._answer))
        except Finished:
            pass
        yield Tell(text=words("drill_over", self.language, time=clock_text(self.watch.seconds)), parts=self._links)

    def write_steps(self, *actions: Option) -> Steps:
        """Ask for the program until it passes or is given up. actions: that the question has in addition."""
        while not self.passed:
            reply = yield from self.ask(self._question(actions))
            if reply.action == "begin":
                self.begin()
            elif reply.action:
                return
            else:
                yield from self._check_steps(reply.value)

    def _question(self, actions: tuple[Option, ...]) -> Ask:
        """The task. Its links and its own answer come once something was tried, because they lead to the solution."""
        drill, language = self.drill, self.language
        begin = () if self.watch.began else (self.action("begin"),)
        more = (*self._links, *self._answer) if self.outcomes else ()
        return Ask(
            form="code", heading=(drill.key, words("minutes", language, count=drill.minutes)),
            parts=(*drill_parts(drill, language), *more), code=drill.stub, name=drill.name,
            actions=(*begin, self.action("give_up"), *actions), clock=self.watch.state,
        )  # fmt: skip

    @property
    def _links(self) -> tuple[TextPart, ...]:
        """Where the course explains it, and the lab's task."""
        links, label = self.drill.links(language=self.language), labels("explained", self.language)
        return tuple(TextPart(name="explained_by", label=label, text=text, link=href) for text, href in links)

    @property
    def _answer(self) -> tuple[TextPart, ...]:
        """The right answer of a drill that is no task of a lab."""
        label, text = words("drill.answer", self.language), self.drill.answer
        return (TextPart(name="code", label=label, text=text, is_folded=True),) if text else ()

    def _check_steps(self, answer: Any) -> Steps:
        """Check an answer, and tell what the check said."""
        try:
            outcome = self.submit(answer)
        except KeyboardInterrupt:
            yield Tell(text=words("check_cut", self.language), style="problem")
            return
        yield Tell(text=outcome.text, output=outcome.output, style="right" if outcome.passed else "wrong")
        if outcome.note:
            yield Tell(text=outcome.note, style="problem")

    def submit(self, answer: Any) -> DrillOutcome:
        """Check an answer and note it. The clock stops at the first answer that passes.

        A check that was interrupted, or found no ranks to run on, is no outcome of this attempt.
        Raises ValueError if the attempt has no check.
        """
        if self._check is None:
            raise ValueError("nothing here can check an answer; hand in a check, such as helpers.grading.grade")
        seconds = self.watch.seconds if self.watch.began else None  # taken before the check, which takes time itself
        verdict = _verdict(self._check, self.drill.key, answer)
        passed = bool(getattr(verdict, "passed", verdict))
        in_time = None if seconds is None else seconds <= self.watch.limit
        if passed:
            self.watch.stop()
        outcome = DrillOutcome(
            key=self.drill.key, passed=passed, seconds=seconds, in_time=in_time, output=_output(verdict, self.language),
            text=self._time_text(passed, seconds), note=self._note(verdict, passed, seconds, in_time),
        )  # fmt: skip
        if _was_tried(verdict):
            self.outcomes.append(outcome)
        return outcome

    def _note(self, verdict: Any, passed: bool, seconds: float | None, in_time: bool | None) -> str:
        """Note it in the progress file as an attempt at the lab's task; "" where that went well or it never ran."""
        if not _was_tried(verdict):
            return ""
        more = {name: getattr(verdict, name) for name in ("mistake", "seed") if hasattr(verdict, name)}
        if seconds is not None:
            more |= {"drill": True, "seconds": round(seconds, 1), "in_time": in_time}
        return progress.record_quietly("check", self.drill.key, passed, path=self._path, **more) or ""

    def _time_text(self, passed: bool, seconds: float | None) -> str:
        """The time in words; "" without a clock."""
        if seconds is None:
            return ""
        limit = self.watch.limit
        name = f"drill.{'passed' if passed else 'open'}_{'in_time' if seconds <= limit else 'late'}"
        over = clock_text(max(0.0, seconds - limit))
        used, left = clock_text(seconds), clock_text(limit - seconds)
        return words(name, self.language, used=used, limit=clock_text(limit), left=left, over=over)


def _verdict(check: Judge, key: str, answer: Any) -> Any:
    """The verdict on an answer, also where the check raises it with an exception."""
    try:
        return check(key, answer)
    except Exception as error:
        if not hasattr(error, "verdict"):
            raise
        return error.verdict


def _was_tried(verdict: Any) -> bool:
    """Whether the answer ran; True for a verdict that does not tell."""
    return getattr(verdict, "was_tried", True)


def _output(verdict: Any, language: str) -> str:
    """What the answer printed, then the verdict as text, in the language if the verdict knows several."""
    text, printed = getattr(verdict, "text", None), getattr(verdict, "printed", "")
    return printed + (text(language) if callable(text) else "" if isinstance(verdict, bool) else str(verdict))
