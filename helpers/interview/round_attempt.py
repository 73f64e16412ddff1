"""Plays one interview round against the clock: marks or answers, points, the sheet, and the best results so far.

A round shows a log or code in which the learner marks the wrong lines (debugging, review), or asks for the plan of a
training (design). round_items.py defines what a round is. `MarkingAttempt` is for debugging and review rounds,
`DesignAttempt` for design rounds. Both are conversations, whose steps a terminal and a notebook play. `words` are the
rounds' sentences in two languages by key, such as `words("over", language)`, and `quiz_words` those of the quiz. The
text of a round is a `Words`, of which `in_(language)` is one language, and `item.filled(text)` fills in its numbers.

A mark is judged by its line. Whether its reason is right, the learner says after reading the right reason. Finding a
mistake gives 2 points and its reason 1; a wrong mark and a hint cost 1 each. A plan that fits gives 2 points, and 1
more if it is as fast as the adviser's; a number gives 2. The adviser is the part of the course that recommends a plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from helpers.interview.answers import how_far_off, read_number
from helpers.interview.card_html import source_link
from helpers.interview.cards import words as quiz_words
from helpers.interview.drills import Now, Stopwatch, clock_text
from helpers.interview.round_items import (
    Design,
    DesignQuestion,
    Marked,
    MarkedMistake,
    Round,
    fill_numbers,
    number_value,
    read_plan,
    words,
)
from helpers.interview.sheet import Sheet
from helpers.interview.steps import Ask, Finished, Option, Show, Steps, Talk, Tell, TextPart
from helpers.learner import progress
from helpers.learner.document import Content, marked
from helpers.learner.progress import FilePath
from helpers.learner.words import Words
from helpers.learner.words import language as chosen_language
from helpers.predict.advice.fit import fullest_stage
from helpers.predict.time.step import step_time
from helpers.quantities.units import format_bytes, format_seconds

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
class RoundAttempt(Talk):
    """One attempt at a round. `steps()` is the conversation; `sheet` can be read at any time.

    A round that was played to its end is noted in the progress file at `path`, the learner's own if None. now: returns
    the time, for tests; the machine's clock if None.
    """

    kind = "round"

    def __init__(self, item: Round, *, language: str | None = None, now: Now | None = None, path: FilePath = None):
        self.item, self.language, self._path = item, chosen_language(language), path
        self.watch = Stopwatch(60.0 * item.minutes, now)
        self.is_complete = False  # whether everything was handed in

    def steps(self) -> Steps:
        """What the round asks, and the sheet, which comes too if the learner ends the round early."""
        try:
            if self.watch.began is None:
                title, kind = self._heading
                text = words("welcome", self.language, title=title, kind=kind, minutes=self.item.minutes)
                yield from self.ask_to_begin(text)
            self.watch.begin()
            yield from self.question_steps()
        except Finished:
            pass
        self.watch.stop()
        if self.is_complete and (note := record_round(self.sheet, path=self._path)):
            yield Tell(text=note, style="problem")
        yield Show(document=self.sheet)

    def question_steps(self) -> Steps:
        """What is asked after the beginning."""
        raise NotImplementedError

    @property
    def _heading(self) -> tuple[str, str]:
        """The title and the kind of the round."""
        return self.item.title.in_(self.language), words(self.item.kind, self.language)

    def _question(self, form: str, submit: str, *, actions: tuple[Option, ...] = (), **fields: Any) -> Ask:
        """A question of this round. submit: the key of the word on the button."""
        fields = {"context": self.item.filled(self.item.prompt).in_(self.language)} | fields
        return Ask(
            form=form, heading=self._heading, submit=words(f"view.{submit}", self.language),
            actions=(*actions, self.finish_action), clock=self.watch.state, **fields,
        )  # fmt: skip

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


class MarkingAttempt(RoundAttempt):
    """Lines of a log or of code are marked, with a reason each; then the reasons are compared with the right ones.

    A mistake of the round is named by its index in `item.mistakes`.
    """

    item: Marked

    def __init__(self, item: Marked, **options):
        super().__init__(item, **options)
        self.marks: dict[int, str] = {}  # number of a line -> reason
        self.hints_given, self.confirmed = set[int](), set[int]()  # indices of mistakes

    def question_steps(self) -> Steps:
        """Take marks until they are handed in, then ask which reasons of the mistakes that were found were right."""
        problem = ""
        while not self.is_complete:
            reply, problem = (yield from self.ask(self._lines(problem))), ""
            try:
                if reply.action == "mark":
                    self.mark(*reply.value)
                elif reply.action == "unmark":
                    self.unmark(reply.value)
                elif reply.action == "hint":
                    hint = self.hint()
                    yield Tell(text=words("hint" if hint else "no_hint", self.language, hint=hint))
                else:
                    self.watch.stop()
                    self.is_complete = True
            except ValueError as error:
                problem = str(error)
        if self.found:
            reply = yield from self.ask(self._comparison())
            self.confirmed = {index for index in self.found if str(index) in reply.value}

    def _lines(self, problem: str) -> Ask:
        """The lines to mark."""
        hint = Option(value="hint", label=words("view.hint", self.language))
        return self._question(
            "lines", "hand_in", actions=(hint,), prompt=words("ask_mark", self.language), code=self.item.text,
            fixed=tuple(sorted(self.item.gaps)), marks=dict(self.marks), problem=problem,
        )  # fmt: skip

    def _comparison(self) -> Ask:
        """For each mistake that was found, the learner's reason beside the right one."""
        rows, options, colon = list(self.rows()), [], quiz_words("colon", self.language)
        for index in self.found:
            texts = {"given": rows[index].given, "right": rows[index].right}
            reasons = [f"{words(f'column.{name}', self.language)}{colon}{text}" for name, text in texts.items()]
            details = "\n\n".join([f"**{rows[index].title}**", *reasons])
            options.append(Option(value=str(index), label=words("held", self.language), details=details))
        context, prompt = words("view.compare", self.language), words("ask_held", self.language)
        return self._question("agree", "sheet", context=context, prompt=prompt, options=tuple(options))

    def mark(self, line: int | str, why: str = "") -> None:
        """Mark a line, or give it another reason. Raises ValueError where there is no such line."""
        if not str(line).isdecimal() or not 1 <= int(line) <= len(self.item.lines):
            raise ValueError(words("no_line", self.language, given=str(line), last=len(self.item.lines)))
        if int(line) in self.item.gaps:
            raise ValueError(words("gap", self.language, line=line))
        self.marks[int(line)] = why.strip()

    def unmark(self, line: int) -> None:
        """Take a mark back. Raises ValueError where there is none."""
        if line not in self.marks:
            raise ValueError(words("not_marked", self.language, line=line))
        del self.marks[line]

    def hint(self) -> str:
        """The hint of the first mistake that is not found and had no hint yet; "" where there is none."""
        left = set(range(len(self.item.mistakes))) - self.hints_given - set(self.found)
        if not left:
            return ""
        self.hints_given.add(min(left))
        return self.item.mistakes[min(left)].hint.in_(self.language)

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
    """Asks `question` and takes `answer("dp=4 tp=8")` or `answer("64.2 GB")`, until `question` is None.

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
        return left[0] if left else None

    def question_steps(self) -> Steps:
        """Ask each question until an answer can be read, and tell how it was judged, and why."""
        while (question := self.question) is not None:
            number, total = len(self.answers) + 1, len(self.item.questions)
            place = quiz_words("place", self.language, number=number, total=total)
            unit = question.numbers[question.number].unit if question.number else ""
            key = "how_to_count" if unit else "how_to_count_plain" if question.number else "how_to_plan"
            how_to = TextPart(name="how_to", text=words(key, self.language, unit=unit))
            text, prompt = f"{place} · {self.text(question.text, question)}", words("ask_answer", self.language)
            step = self._question("text", "answer", question=text, parts=(how_to,), prompt=prompt)
            answer = yield from self.ask_until_read(step, self.answer)
            yield Tell(text=f"{place} · {answer.sentence}", style="right" if answer.points else "wrong")
            yield Tell(text=self.text(question.why, question))

    def text(self, text: Words, question: DesignQuestion) -> str:
        """A text of this question with its numbers."""
        return fill_numbers(text, question.numbers, question.scene).in_(self.language)

    def answer(self, given: str) -> DesignAnswer:
        """Judge an answer and go on. Raises ValueError, with the question staying, for one that cannot be read."""
        question = self.question
        judge = self._judge_number if question.number else self._judge_plan
        answer = judge(question, given.strip())
        self.answers.append(answer)
        if len(self.answers) == len(self.item.questions):
            self.watch.stop()
            self.is_complete = True
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


def new_attempt(item: Round, **options) -> MarkingAttempt | DesignAttempt:
    """An attempt at this round, not begun; the options are those of `RoundAttempt`."""
    return (MarkingAttempt if isinstance(item, Marked) else DesignAttempt)(item, **options)
