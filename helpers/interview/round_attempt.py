"""Plays one interview round against the clock: marks or answers, points, the sheet, and the best results so far.

A round shows a log or code in which the learner marks the wrong lines (debugging, review), or asks for the plan of a
training (design). round_items.py defines what a round is. `MarkingAttempt` is for debugging and review rounds,
`DesignAttempt` for design rounds. `terminal_interviews.py` and `helpers.widgets.RoundView` show them. `words` are the
rounds' sentences in two languages by key, such as `words("over", language)`, and `quiz_words` those of the quiz. The
text of a round is a `Words`, of which `in_(language)` is one language, and `item.filled(text)` fills in its numbers.

A mark is judged by its line. Whether its reason is right, the learner says after reading the right reason. Finding a
mistake gives 2 points and its reason 1; a wrong mark and a hint cost 1 each. A plan that fits gives 2 points, and 1
more if it is as fast as the adviser's; a number gives 2. The adviser is the part of the course that recommends a plan.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from helpers.interview.answers import how_far_off, read_number
from helpers.interview.card_html import source_link
from helpers.interview.cards import words as quiz_words
from helpers.interview.drills import Now, Stopwatch, clock_text
from helpers.interview.round_items import (
    ROUNDS,
    Design,
    DesignQuestion,
    Marked,
    MarkedMistake,
    Round,
    Scenario,
    fill_numbers,
    number_value,
    rounds,
    words,
)
from helpers.interview.sheet import Sheet
from helpers.learner import progress
from helpers.learner.document import Content, marked
from helpers.learner.progress import FilePath
from helpers.learner.words import LANGUAGES, Words
from helpers.learner.words import language as chosen_language
from helpers.predict.advice.criticise import read_plan as read_typed_plan
from helpers.predict.advice.fit import fullest_stage
from helpers.predict.time.step import step_time
from helpers.quantities.units import format_bytes, format_seconds
from helpers.specs import Plan

FOUND_POINTS, REASON_POINTS, FITS_POINTS, FAST_POINTS, NUMBER_POINTS = 2, 1, 2, 1, 2


# -- the sheet of a round --------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class RoundRow:
    """One row of the sheet: a mistake, a wrong mark, the hints, or a question.

    given: what the learner answered. right: what is right. points: those that it gave. most: those that it could give.
    """

    title: str
    given: str
    right: str
    points: int
    most: int = 0

    @property
    def score(self) -> str:
        return f"{self.points} / {self.most}" if self.most else str(self.points)


@dataclass(frozen=True, kw_only=True)
class RoundSheet(Sheet):
    """The sheet after a round: what was answered and what is right, points, time, and the model answer.

    `Sheet` writes it as plain text, Markdown or HTML. links: text and address of where the course shows it.
    """

    ONE_LINE_COLUMNS: ClassVar[tuple[int, ...]] = (0, 4)  # indices of columns that are not wrapped: number, points
    WIDE_COLUMNS: ClassVar[tuple[int, ...]] = (2,)  # what the learner answered

    item: Round
    watch: Stopwatch
    links: tuple[tuple[str, str], ...]

    @property
    def points(self) -> int:
        """The sum, at least 0: wrong marks and hints cost points only from those that were earned."""
        return max(0, sum(row.points for row in self.items))

    @property
    def most(self) -> int:
        return sum(row.most for row in self.items)

    @property
    def heading(self) -> str:
        title, kind = self.item.title.in_(self.language), words(self.item.kind, self.language)
        return words("title", self.language, title=title, kind=kind)

    @property
    def columns(self) -> list[str]:
        names = ("number", "place", "given", "right", "points")
        return [words(f"column.{name}", self.language) for name in names]

    @property
    def summary(self) -> tuple[str, str]:
        """Two lines: points and time."""
        over = self.word("over") if self.watch.is_over else ""
        used, limit = clock_text(self.watch.seconds), clock_text(self.watch.limit)
        points = words("points", self.language, points=self.points, most=self.most)
        return points, words("time", self.language, used=used, limit=limit) + over

    @property
    def closing(self) -> tuple[str, str]:
        """The model answer, with its heading."""
        return words("model", self.language), self.item.filled(self.item.model).in_(self.language)

    def steps(self) -> list[tuple[str, tuple[tuple[str, str], ...]]]:
        """Read where the course shows it, and play the round again unless everything was right."""
        again = "" if self.points == self.most else words("again", self.language, id=self.item.id)
        return [(self.word("read_on") + again, self.links)]

    def cells(self, number: int, item: RoundRow) -> tuple[Content, ...]:
        """A row of the table."""
        return str(number), marked(item.title), marked(item.given), marked(item.right), item.score

    def _lines(self, number: int, item: RoundRow) -> list[str]:
        """A row as plain text: its title, and below it what was given, what is right, and the points."""
        colon = quiz_words("colon", self.language)
        texts = {"given": item.given, "right": item.right, "points": item.score}
        lines = [f"   {words(f'column.{name}', self.language)}{colon}{text}" for name, text in texts.items() if text]
        return [f"{number}. {item.title}", *lines]


# -- results in the progress file ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class BestResult:
    """The best result of a round: points out of `most`, in how many seconds. times: how often it was played."""

    points: int
    most: int
    seconds: float
    times: int


def record_round(sheet: RoundSheet, *, path: FilePath = None) -> str:
    """Note a round, as passed if it got all its points; returns "" or the sentence why it could not be noted."""
    score = {"points": sheet.points, "most": sheet.most, "seconds": round(sheet.watch.seconds, 1)}
    return progress.record_quietly("round", sheet.item.id, sheet.points == sheet.most, path=path, **score) or ""


def best_results(path: FilePath = None) -> dict[str, BestResult]:
    """Maps the id of a round to its best result: most points, then fewest seconds. Damaged lines are left out."""
    attempts: dict[str, list[tuple[int, float, int]]] = {}
    names = ("points", "most", "seconds")
    for entry in progress.read_if_possible(path).entries:
        if entry.kind == "round" and all(type(entry.more.get(name)) in (int, float) for name in names):
            points, most, seconds = (entry.more[name] for name in names)
            attempts.setdefault(entry.key, []).append((points, -seconds, most))  # the greatest tuple is the best
    results = {}
    for key, tries in attempts.items():
        points, minus_seconds, most = max(tries)
        results[key] = BestResult(points, most, -minus_seconds, len(tries))
    return results


# -- a round ---------------------------------------------------------------------------------------------------------
class RoundAttempt:
    """One attempt at a round: `begin()`, then what the round asks, then `finish()`; `sheet` at any time.

    `stage` is "ready"; "asked" while the learner marks or answers; "compare" once the clock has stopped and reasons are
    compared; "over". A round that was played to its end is noted in the progress file at `path`, the learner's own if
    None; `note` is a sentence where that failed. now: returns the time, for tests; the machine's clock if None.
    """

    def __init__(self, item: Round, *, language: str | None = None, now: Now | None = None, path: FilePath = None):
        self.item, self.language, self._path, self.note = item, chosen_language(language), path, ""
        self.watch = Stopwatch(60.0 * item.minutes, now)
        self.stage = "ready"

    def begin(self) -> RoundAttempt:
        """Start the clock; a second call changes nothing."""
        if self.stage == "ready":
            self.watch.begin()
            self.stage = "asked"
        return self

    def finish(self) -> RoundSheet:
        """End the round here, whatever is left; a round that is ended early is not noted."""
        self.watch.stop()
        sheet, was_played_to_its_end, self.stage = self.sheet, self.stage == "compare", "over"
        if was_played_to_its_end:
            self.note = record_round(sheet, path=self._path)
        return sheet

    @property
    def sheet(self) -> RoundSheet:
        """Points, time, what was answered and what is right, with the model answer."""
        # seed=0: `Sheet` wants the seed of a random choice of questions, and a round makes none.
        return RoundSheet(
            items=tuple(self.rows()), language=self.language, seed=0, item=self.item, watch=self.watch,
            links=(source_link(self.item.shown_by, language=self.language),),
        )  # fmt: skip

    def rows(self) -> Iterator[RoundRow]:
        """The rows of the sheet."""
        raise NotImplementedError

    def _check_is_asked(self) -> None:
        if self.stage != "asked":
            raise ValueError(words("over", self.language))


class MarkingAttempt(RoundAttempt):
    """`mark(7, "why")`, `unmark(7)`, `hint()`; `hand_in()` stops the clock; then `confirm_reason(index)`.

    A mistake of the round is named by its index in `item.mistakes`.
    """

    item: Marked

    def __init__(self, item: Marked, **options):
        super().__init__(item, **options)
        self.marks: dict[int, str] = {}  # number of a line -> reason
        self.hints_given, self.confirmed = set[int](), set[int]()  # indices of mistakes

    def mark(self, line: int | str, why: str = "") -> None:
        """Mark a line, or give it another reason. Raises ValueError where there is no such line."""
        self._check_is_asked()
        if not str(line).isdecimal() or not 1 <= int(line) <= len(self.item.lines):
            raise ValueError(words("no_line", self.language, given=str(line), last=len(self.item.lines)))
        if int(line) in self.item.gaps:
            raise ValueError(words("gap", self.language, line=line))
        self.marks[int(line)] = why.strip()

    def unmark(self, line: int) -> None:
        """Take a mark back. Raises ValueError where there is none."""
        self._check_is_asked()
        if line not in self.marks:
            raise ValueError(words("not_marked", self.language, line=line))
        del self.marks[line]

    def hint(self) -> str:
        """The hint of the first mistake that is not found and had no hint yet; "" where there is none."""
        self._check_is_asked()
        left = set(range(len(self.item.mistakes))) - self.hints_given - set(self.found)
        if not left:
            return ""
        self.hints_given.add(min(left))
        return self.item.mistakes[min(left)].hint.in_(self.language)

    def hand_in(self) -> tuple[int, ...]:
        """Stop the clock. Returns the indices of the mistakes that were found."""
        self._check_is_asked()
        self.watch.stop()
        self.stage = "compare"
        return self.found

    def confirm_reason(self, index: int, agrees: bool = True) -> None:
        """Say that the reason given for this mistake agrees, or does not agree, with the right one."""
        if self.stage != "compare" or index not in self.found:
            raise ValueError(words("over", self.language))
        self.confirmed = self.confirmed | {index} if agrees else self.confirmed - {index}  # gives points for the reason

    @property
    def found(self) -> tuple[int, ...]:
        """Indices of the mistakes of which a line is marked."""
        return tuple(n for n, mistake in enumerate(self.item.mistakes) if self.marks.keys() & set(mistake.lines))

    def line_of(self, mistake: MarkedMistake) -> int:
        """The marked line by which it was found, preferring one with a reason; else the first of its lines."""
        marked = [line for line in mistake.lines if line in self.marks]
        with_reason = [line for line in marked if self.marks[line]]
        return [*with_reason, *marked, *mistake.lines][0]

    @property
    def wrong(self) -> tuple[int, ...]:
        """Marked lines in which nothing is wrong."""
        right = {line for mistake in self.item.mistakes for line in mistake.lines}
        return tuple(sorted(self.marks.keys() - right))

    def rows(self) -> Iterator[RoundRow]:
        """A row per mistake, one per wrong mark, and one for the hints, if there were any."""
        most = FOUND_POINTS + REASON_POINTS
        for index, mistake in enumerate(self.item.mistakes):  # True counts as 1, False as 0
            points = FOUND_POINTS * (index in self.found) + REASON_POINTS * (index in self.confirmed)
            why, title = self.item.filled(mistake.why).in_(self.language), self._title(self.line_of(mistake))
            yield RoundRow(title=title, given=self._given(mistake), right=why, points=points, most=most)
        for line in self.wrong:
            nothing = words("nothing_wrong", self.language)
            yield RoundRow(title=self._title(line), given=self._reason(line), right=nothing, points=-1)
        if num_hints := len(self.hints_given):
            yield RoundRow(title=words("hints", self.language), given=str(num_hints), right="", points=-num_hints)

    def _title(self, line: int) -> str:
        """ "line 7: `loss.backward()`": the number and the text of a line."""
        colon = quiz_words("colon", self.language)
        return f"{words('place', self.language, line=line)}{colon}`{self.item.lines[line - 1].strip()}`"

    def _given(self, mistake: MarkedMistake) -> str:
        """What the learner gave for a mistake: the reason of the mark, or that it was missed."""
        line = self.line_of(mistake)
        return self._reason(line) if line in self.marks else words("missed", self.language)

    def _reason(self, line: int) -> str:
        why = self.marks[line]
        return words("found_reason", self.language, why=why) if why else words("no_reason", self.language)


@dataclass(frozen=True)
class DesignAnswer:
    """How the answer to a design question was judged."""

    given: str
    points: int
    sentence: str


class DesignAttempt(RoundAttempt):
    """`answer("dp=4 tp=8")` or `answer("64.2 GB")` to `question`, until `question` is None.

    A question asks for a number where `question.number` is the name of one, and for a plan otherwise.
    """

    item: Design

    def __init__(self, item: Design, **options):
        super().__init__(item, **options)
        self.answers: list[DesignAnswer] = []

    @property
    def question(self) -> DesignQuestion | None:
        """The present question."""
        left = self.item.questions[len(self.answers) :]
        return left[0] if left and self.stage == "asked" else None

    @property
    def position(self) -> str:
        """Of the present question: "2 of 4"."""
        return quiz_words("place", self.language, number=len(self.answers) + 1, total=len(self.item.questions))

    @property
    def prompt(self) -> str:
        """The present question, and how an answer to it is written."""
        question = self.question
        unit = question.numbers[question.number].unit if question.number else ""
        key = "how_to_count" if unit else "how_to_count_plain" if question.number else "how_to_plan"
        text = self.text(question.text, question)
        return f"**{self.position} · {text}**\n\n{words(key, self.language, unit=unit)}"

    def text(self, text: Words, question: DesignQuestion) -> str:
        """A text of this question with its numbers."""
        return fill_numbers(text, question.numbers, question.scene).in_(self.language)

    def answer(self, given: str) -> DesignAnswer:
        """Judge an answer and go on. Raises ValueError, with the question staying, for one that cannot be read."""
        self._check_is_asked()
        question = self.question
        if question is None:
            raise ValueError(words("over", self.language))
        judge = self._judge_number if question.number else self._judge_plan
        answer = judge(question, given.strip())
        self.answers.append(answer)
        if len(self.answers) == len(self.item.questions):
            self.watch.stop()
            self.stage = "compare"
        return answer

    def _judge_number(self, question: DesignQuestion, given: str) -> DesignAnswer:
        """Judge a number, which is right within the question's tolerance."""
        number = question.numbers[question.number]
        truth = number_value(question.number, question.numbers, question.scene)
        guess = read_number(given, number.unit, self.language, example=f"12.3 {number.unit}".strip())
        printed = number.format(truth)
        if abs(guess - truth) <= question.tolerance * abs(truth):
            return DesignAnswer(given, NUMBER_POINTS, words("right_number", self.language, says=printed))
        off = how_far_off(guess, truth, self.language)
        return DesignAnswer(given, 0, words("wrong_number", self.language, says=printed, given=given, off=off))

    def _judge_plan(self, question: DesignQuestion, given: str) -> DesignAnswer:
        """Judge a plan by whether it fits into memory, and by its time per step, compared with the adviser's plan."""
        scene = question.scene
        plan = read_plan(given, scene, self.language)
        # Bytes of the fullest rank under this plan, and those that a GPU of the scenario has for a training. [1] is the
        # memory by kind of a rank in the fullest pipeline stage; [0] is the number of that stage.
        memory, usable = fullest_stage(scene.model, plan)[1].total, scene.advice.request.usable
        values = {"held": format_bytes(memory), "usable": format_bytes(usable)}
        if memory > usable:
            return DesignAnswer(given, 0, words("fits_not", self.language, **values))
        seconds = step_time(scene.model, plan, scene.cluster, scene.advice.request.stack).seconds
        times = seconds / scene.advice.chosen.seconds
        values |= {"step": format_seconds(seconds), "times": f"{times:.2f}"}
        if times <= question.within:
            return DesignAnswer(given, FITS_POINTS + FAST_POINTS, words("good_plan", self.language, **values))
        return DesignAnswer(given, FITS_POINTS, words("slow", self.language, **values))

    def rows(self) -> Iterator[RoundRow]:
        """A row per question."""
        between = quiz_words("between", self.language)
        for number, question in enumerate(self.item.questions):
            answer = self.answers[number] if number < len(self.answers) else None
            given, verdict = (answer.given, answer.sentence) if answer else (words("unanswered", self.language), "")
            yield RoundRow(
                title=self.text(question.text, question), given=given,
                right=between.join(filter(None, (verdict, self.text(question.why, question)))),
                points=answer.points if answer else 0,
                most=NUMBER_POINTS if question.number else FITS_POINTS + FAST_POINTS,
            )  # fmt: skip


def read_plan(given: str, scene: Scenario, language: str | None = None) -> Plan:
    """ "dp=4, tp=8 zero=1" as a Plan of this scenario. Raises ValueError, a sentence, where it is none."""
    try:
        return read_typed_plan(given, scene.model, scene.cluster, scene.global_batch, language)
    except ValueError as error:
        raise ValueError(words("no_plan", language, given=given, reason=str(error).rstrip("."))) from None


def new_attempt(item: Round, **options) -> MarkingAttempt | DesignAttempt:
    """An attempt at this round, not begun; the options are those of `RoundAttempt`."""
    return (MarkingAttempt if isinstance(item, Marked) else DesignAttempt)(item, **options)


def choose_round(name: str, language: str | None = None, seed: int | None = None) -> Round:
    """The round of this id, or a random one of this kind. Raises ValueError where `name` is neither."""
    kinds = {words[kind].in_(lang): kind for kind in ROUNDS for lang in LANGUAGES}  # also by its name in a language
    kind = kinds.get(name, name)
    candidates = [one for one in rounds() if one.kind == kind or one.id == name]
    if not candidates:
        raise ValueError(words("no_round", language, given=name, kinds=ROUNDS, known=[one.id for one in rounds()]))
    return random.Random(seed).choice(candidates)
