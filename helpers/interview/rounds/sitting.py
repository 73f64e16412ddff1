"""One round against the clock. A mark is judged by its line; whether its reason holds says who gave it, beside ours.

A place that was found gives 2 points, its reason 1; a wrong mark and a hint cost 1 each. A plan that fits gives 2, one
that is as fast as the adviser's 1 more; a number gives 2.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass

from helpers.interview.answers import how_far_off, read_number
from helpers.interview.links import place as place_of
from helpers.interview.rounds.items import ROUNDS, Design, Marked, Place, Question, Round, rounds
from helpers.interview.rounds.kept import keep
from helpers.interview.rounds.plans import read_plan
from helpers.interview.rounds.scene import filled, value
from helpers.interview.rounds.sheet import RoundSheet, Row
from helpers.interview.stopwatch import Now, Stopwatch
from helpers.interview.words import say as quiz_say
from helpers.learner import words
from helpers.learner.words import Words, book
from helpers.predict.advice.fit import fullest_stage
from helpers.predict.time.step import step_time
from helpers.quantities.units import format_bytes, format_seconds

say = book("round")
FOUND, HELD, FITS, FAST, NUMBER = 2, 1, 2, 1, 2


class Sitting:
    """`begin()`, then what the round asks, then `finish()`; `sheet` at any time. language, now: as in MockInterview.

    A round that was done to its end is noted in the progress file (path); note: a sentence where that failed.
    """

    def __init__(
        self, item: Round, *, language: str | None = None, now: Now | None = None, path: str | os.PathLike | None = None
    ):
        self.item, self.language, self._path, self.note = item, words.language(language), path, ""
        self.watch = Stopwatch(60.0 * item.minutes, now)
        self.stage = "ready"

    def begin(self) -> Sitting:
        """Start the clock; a second call changes nothing."""
        if self.stage == "ready":
            self.watch.begin()
            self.stage = "asked"
        return self

    def finish(self) -> RoundSheet:
        """End it here, whatever is left; one that was ended early is not noted."""
        self.watch.stop()
        sheet, is_done, self.stage = self.sheet, self.stage == "compare", "over"
        if is_done:
            self.note = keep(sheet, path=self._path)
        return sheet

    @property
    def sheet(self) -> RoundSheet:
        """Points, time, what was answered and what is right, with the model answer."""
        return RoundSheet(
            items=tuple(self.rows()), language=self.language, seed=0, item=self.item, watch=self.watch,
            links=(place_of(self.item.shown_by, language=self.language),),
        )  # fmt: skip

    def rows(self) -> Iterator[Row]:
        raise NotImplementedError

    def _at_hand(self) -> None:
        if self.stage != "asked":
            raise ValueError(say("over", self.language))


class Marking(Sitting):
    """`mark(7, "why")`, `unmark(7)`, `hint()`; `hand_in()` stops the clock; then `hold(place)` where a reason held."""

    item: Marked

    def __init__(self, item: Marked, **options):
        super().__init__(item, **options)
        self.marks: dict[int, str] = {}
        self.hinted, self.held = set[int](), set[int]()

    def mark(self, line: int | str, why: str = "") -> None:
        """Mark a line, or give it another reason. Raises ValueError where there is no such line."""
        self._at_hand()
        if not str(line).isdecimal() or not 1 <= int(line) <= len(self.item.lines):
            raise ValueError(say("no_line", self.language, given=str(line), last=len(self.item.lines)))
        if int(line) in self.item.gaps:
            raise ValueError(say("gap", self.language, line=line))
        self.marks[int(line)] = why.strip()

    def unmark(self, line: int) -> None:
        """Take a mark back. Raises ValueError where there is none."""
        self._at_hand()
        if line not in self.marks:
            raise ValueError(say("not_marked", self.language, line=line))
        del self.marks[line]

    def hint(self) -> str:
        """The hint of the first place that is not found and had none yet; "" where there is no such place."""
        self._at_hand()
        left = set(range(len(self.item.places))) - self.hinted - set(self.found)
        if not left:
            return ""
        self.hinted.add(min(left))
        return self.item.places[min(left)].hint.in_(self.language)

    def hand_in(self) -> tuple[int, ...]:
        """The clock stops. Returns which places were found, as numbers from 0."""
        self._at_hand()
        self.watch.stop()
        self.stage = "compare"
        return self.found

    def hold(self, place: int, is_held: bool = True) -> None:
        """The reason that was given for this place says what ours says, or does not."""
        if self.stage != "compare" or place not in self.found:
            raise ValueError(say("over", self.language))
        self.held = self.held | {place} if is_held else self.held - {place}

    @property
    def found(self) -> tuple[int, ...]:
        return tuple(n for n, place in enumerate(self.item.places) if self.marks.keys() & set(place.lines))

    def line_of(self, place: Place) -> int:
        """The line by which it was found, one with a reason before others; else the first of those that count."""
        marked = [line for line in place.lines if line in self.marks]
        return next((line for line in marked if self.marks[line]), [*marked, place.lines[0]][0])

    @property
    def wrong(self) -> tuple[int, ...]:
        """Marked lines in which nothing is wrong."""
        right = {line for place in self.item.places for line in place.lines}
        return tuple(sorted(self.marks.keys() - right))

    def rows(self) -> Iterator[Row]:
        for number, place in enumerate(self.item.places):
            points = FOUND * (number in self.found) + HELD * (number in self.held)
            why = self.item.told(place.why).in_(self.language)
            yield Row(
                title=self._title(self.line_of(place)), given=self._given(place), right=why, points=points, most=3
            )
        for line in self.wrong:
            nothing = say("nothing_wrong", self.language)
            yield Row(title=self._title(line), given=self._reason(line), right=nothing, points=-1)
        if num_hints := len(self.hinted):
            yield Row(title=say("hints", self.language), given=str(num_hints), right="", points=-num_hints)

    def _title(self, line: int) -> str:
        colon = quiz_say("colon", self.language)
        return f"{say('place', self.language, line=line)}{colon}`{self.item.lines[line - 1].strip()}`"

    def _given(self, place: Place) -> str:
        line = self.line_of(place)
        return self._reason(line) if line in self.marks else say("missed", self.language)

    def _reason(self, line: int) -> str:
        why = self.marks[line]
        return say("found_reason", self.language, why=why) if why else say("no_reason", self.language)


@dataclass(frozen=True)
class Answer:
    """What came of a question's answer."""

    given: str
    points: int
    sentence: str


class Designing(Sitting):
    """`answer("dp=4 tp=8")` or `answer("64.2 GB")` to `question`, until it is None."""

    item: Design

    def __init__(self, item: Design, **options):
        super().__init__(item, **options)
        self.answers: list[Answer] = []

    @property
    def question(self) -> Question | None:
        left = self.item.questions[len(self.answers) :]
        return left[0] if left and self.stage == "asked" else None

    @property
    def place(self) -> str:
        """Of the question at hand: "2 of 4"."""
        return quiz_say("place", self.language, number=len(self.answers) + 1, total=len(self.item.questions))

    @property
    def asked(self) -> str:
        """The question at hand, and how an answer to it is written."""
        question = self.question
        unit = question.numbers[question.number].unit if question.number else ""
        how = "how_to_plan" if not question.number else "how_to_count" if unit else "how_to_count_plain"
        text = self.text(question.text, question)
        return f"**{self.place} · {text}**\n\n{say(how, self.language, unit=unit)}"

    def text(self, text: Words, question: Question) -> str:
        """A text of this question with its numbers."""
        return filled(text, question.numbers, question.scene).in_(self.language)

    def answer(self, given: str) -> Answer:
        """Judge it and go on. Raises ValueError, with the question staying, for what cannot be read."""
        self._at_hand()
        question, judge = self.question, self._number if self.question and self.question.number else self._plan
        if question is None:
            raise ValueError(say("over", self.language))
        found = judge(question, given.strip())
        self.answers.append(found)
        if len(self.answers) == len(self.item.questions):
            self.watch.stop()
            self.stage = "compare"
        return found

    def _number(self, question: Question, given: str) -> Answer:
        number, true = (
            question.numbers[question.number],
            value(question.number, question.numbers, question.scene),
        )
        said = read_number(given, number.unit, self.language, example=f"12.3 {number.unit}".strip())
        if abs(said - true) <= question.tolerance * abs(true):
            return Answer(given, NUMBER, say("right_number", self.language, says=number.said(true)))
        off = how_far_off(said, true, self.language)
        return Answer(given, 0, say("wrong_number", self.language, says=number.said(true), given=given, off=off))

    def _plan(self, question: Question, given: str) -> Answer:
        scene = question.scene
        plan = read_plan(given, scene, self.language)
        held, usable = fullest_stage(scene.model, plan)[1].total, scene.advice.request.usable
        told = {"held": format_bytes(held), "usable": format_bytes(usable)}
        if held > usable:
            return Answer(given, 0, say("fits_not", self.language, **told))
        seconds = step_time(scene.model, plan, scene.cluster, scene.advice.request.stack).seconds
        times = seconds / scene.advice.chosen.seconds
        told |= {"step": format_seconds(seconds), "times": f"{times:.2f}"}
        is_fast = times <= question.within
        return Answer(given, FITS + FAST * is_fast, say("good_plan" if is_fast else "slow", self.language, **told))

    def rows(self) -> Iterator[Row]:
        between = quiz_say("between", self.language)
        for number, question in enumerate(self.item.questions):
            answer = self.answers[number] if number < len(self.answers) else None
            given, said = (answer.given, answer.sentence) if answer else (say("unanswered", self.language), "")
            yield Row(
                title=self.text(question.text, question), given=given,
                right=between.join(filter(None, (said, self.text(question.why, question)))),
                points=answer.points if answer else 0, most=NUMBER if question.number else FITS + FAST,
            )  # fmt: skip


def sitting(item: Round, **options) -> Marking | Designing:
    """The round, not begun."""
    return (Marking if isinstance(item, Marked) else Designing)(item, **options)


def choose(name: str, language: str | None = None, seed: int | None = None) -> Round:
    """The round of this id, or by chance one of this kind. Raises ValueError for what is neither."""
    kinds = {one.in_(lang): kind for kind in ROUNDS for one in [say[kind]] for lang in words.LANGUAGES}
    kind = kinds.get(name, name)
    known = rounds(kind) if kind in ROUNDS else rounds()
    among = known if kind in ROUNDS else [one for one in known if one.id == name]
    if not among:
        raise ValueError(say("no_round", language, given=name, kinds=ROUNDS, known=[one.id for one in known]))
    return random.Random(seed).choice(among)
