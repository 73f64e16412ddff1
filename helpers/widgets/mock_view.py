"""Provides DrillView, a coding drill with a clock, and MockView, a mock interview of five cards and one drill.

A card is an interview question that the learner answers aloud; they see its answer, and rate their own. A drill is a
function to write within some minutes. The sheet is the summary of an interview: times, ratings, strong and weak topics.
`helpers.grading.drill(key)` and `helpers.grading.mock_view()` create the views with the lab's checks. Attempt and
MockInterview do the work; the views show them. SheetView, MockView's base class, has `save()`, which writes the sheet
to DEFAULT_FILE, `_text(name)`, a text in the language of the dial, the row of buttons with which an answer is rated,
and `_draw_answer(card)`, which fills `solution` and `links`. `in_(language)` gives a text in a language.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from html import escape
from typing import Any

import ipywidgets

from helpers.interview.cards import LEVELS, Card, topic_name
from helpers.interview.cards import words as quiz_words  # texts by name: learner/words/quiz.yaml
from helpers.interview.drills import Attempt, DrillOutcome, Judge, Now, drill
from helpers.interview.mock import MockInterview
from helpers.interview.sheet import Sheet
from helpers.widgets.clock import Clock
from helpers.widgets.dials import choice
from helpers.widgets.interview_view import (
    InterviewView,
    SheetView,
    bilingual_options,
    call_html,
    draw_buttons,
    drill_answer_html,
    drill_html,
    language_dial,
    links_html,
    name_in_notebook,
    question_html,
    set_dial_widths,
    words,
)
from helpers.widgets.view import Page, alert_html, button, display, feedback_html, row


class DrillView(InterviewView):
    """A coding drill. `begin()` or its button starts the clock; `check(function)`, in the next cell, checks the answer.

    key: such as "03.average". check: `(key, answer) -> verdict`, such as helpers.grading.grade, which
    `helpers.grading.drill(key)` passes. language: "en" or "zh", by default the learner's. path: the progress file. now:
    a function that returns the time, for tests. Raises ValueError for a key that has no drill.
    """

    TEXT = "[widget] DrillView: a thing to write in 15 minutes, with a clock"

    def __init__(
        self,
        key: str,
        check: Judge | None = None,
        *,
        language: str | None = None,
        path: str | os.PathLike | None = None,
        now: Now | None = None,
    ) -> None:
        # `attempt.outcomes` are the results of the answers so far, each with `passed` and, as its repr, a text for the
        # learner; `attempt.watch` is the stopwatch.
        self.attempt = Attempt(drill(key), check, language=language, path=path, now=now)
        # Of a drill, `prompt` is the task, `stub` the code to begin with, and `name` the function to write.
        self.drill = self.attempt.drill
        self.clock = Clock(self.drill.minutes, language=language, now=now).show(self.attempt.watch)
        self.begin_button = button(self.begin, words("begin", self.attempt.language), style="primary")
        self.prompt = ipywidgets.HTML(drill_html(self.drill, language))
        self.call, self.feedback, self.links = ipywidgets.HTML(), ipywidgets.HTML(), Page()
        head = row(self.clock, self.begin_button)
        super().__init__([head, self.prompt, self.call, self.feedback, self.links])
        self._draw()

    def begin(self) -> DrillView:
        """Start the clock; a second call changes nothing."""
        self.attempt.begin()
        self._draw()
        return self

    def check(self, answer: Any) -> DrillOutcome:
        """Check an answer, a function or class, and note it; the links to chapter and lab show once it was tried."""
        outcome = self.attempt.submit(answer)
        self._draw()
        return outcome

    @property
    def text(self) -> str:
        """What is shown now, as plain text."""
        outcomes = [repr(self.attempt.outcomes[-1])] if self.attempt.outcomes else []
        language = self.attempt.language
        return "\n".join([self.clock.text, self.drill.prompt.in_(language), self.drill.stub, *outcomes])

    def _draw(self) -> None:
        """Show the clock, and what became of the last answer."""
        language, outcomes = self.attempt.language, self.attempt.outcomes
        self.clock.refresh()
        display(self.begin_button, self.attempt.watch.began is None)
        name = name_in_notebook(self, f'drill("{self.drill.key}")')  # what the next cell may call this widget
        self.call.value = call_html(f"{name}.check({self.drill.name})", language)
        self.feedback.value = feedback_html(repr(outcomes[-1]), is_right=outcomes[-1].passed) if outcomes else ""
        places = self.drill.links(language=language)  # of chapter and lab: pairs of text and address
        more = links_html("explained", places, language) + drill_answer_html(self.drill, language)
        self.links.show(more if outcomes else "")

    @property
    def saved_html(self) -> str:
        """What a saved notebook shows: the prompt."""
        minutes = f"<p>{escape(self.drill.key)} · {self.drill.minutes}:00</p>"
        return f"<div>{minutes}{drill_html(self.drill, self.attempt.language)}</div>"


class MockView(SheetView):
    """A mock interview. Without a front end: `.begin()`, `.reveal()`, `.rate("good")`, `.submit(function)`, `.skip()`,
    `.finish()`, `.sheet`.

    check: `(key, answer) -> verdict` for the drill; helpers.grading.mock_view() passes the labs' checks. level, topics:
    those of the cards, by default all. seed: of the random choice of cards. cards: to choose from, by default all of
    the course. language, path, now: as in DrillView.
    """

    DEFAULT_FILE = "mock-interview.md"
    TEXT = "[widget] MockView: five cards and one drill against the clock, then a sheet of what was strong and weak"

    def __init__(
        self,
        check: Judge | None = None,
        *,
        level: str | None = None,
        topics: Iterable[str] = (),
        language: str | None = None,
        seed: int | None = None,
        path: str | os.PathLike | None = None,
        now: Now | None = None,
        cards: Iterable[Card] | None = None,
    ) -> None:
        self._options: dict[str, Any] = {"check": check, "topics": tuple(topics), "path": path, "now": now}
        self._options["cards"] = None if cards is None else tuple(cards)
        self._seed = seed  # of the choice of cards
        self.level = choice(bilingual_options(LEVELS), level or "", "level · 级别")  # "": all levels
        self.language = language_dial(language)
        self._make_controls(Clock(3, language=language, now=now))  # 3 minutes, until a card or the drill sets its own
        super().__init__(self._arranged())
        set_dial_widths((self.level, self.language))
        for dial in (self.level, self.language):
            dial.observe(self._prepare, names="value")
        self._prepare()

    # -- parts ---------------------------------------------------------------------------------------------------------
    def _make_controls(self, clock: Clock) -> None:
        """Make all parts but the dials."""
        self.clock, self.links, self.sheet_page = clock, Page(), Page()
        self.sheet_page.layout.margin = "0 0 0 14px"
        self.prompt, self.solution, self.call, self.feedback, self.note = (ipywidgets.HTML() for _ in range(5))
        self.begin_button = button(self.begin, style="primary")
        self.show_button = button(self.reveal, style="primary")
        self.skip_button, self.give_up_button = button(self.skip), button(self.skip)
        self.finish_button = button(self.finish)
        self.save_button, self.again_button = button(self.save), button(self._again)

    def _arranged(self) -> list[ipywidgets.Widget]:
        """All parts, from the top."""
        self._dials = row(self.level, self.language)
        buttons = (self.begin_button, self.show_button, self.skip_button, self.give_up_button, self.finish_button)
        below = row(*buttons, self.save_button, self.again_button)
        shown = [self.clock, self.prompt, self.solution, self.links, self.call, self.feedback, self.sheet_page]
        return [self._dials, *shown, self._make_rating_row(self.rate), below, self.note]

    # -- actions -------------------------------------------------------------------------------------------------------
    def begin(self) -> MockView:
        """Show the first card and start its clock; a second call changes nothing."""
        if self.interview is not None:
            self.interview.begin()
            self._draw(self.show_button)
        return self

    def reveal(self) -> None:
        """The learner has answered aloud: stop the clock and show the answer of the card."""
        self._running.reveal()
        self._is_open = True
        self._draw(self.rating_buttons["good"])

    def rate(self, rating: str) -> None:
        """Rate the spoken answer, and continue with the next card or the drill."""
        self._running.rate(rating)
        self._move_on()

    def skip(self) -> None:
        """Skip the current card, or give up the drill."""
        self._running.skip()
        self._move_on()

    def submit(self, answer: Any) -> DrillOutcome:
        """Check an answer to the drill, a function or class. Once an answer passes, the sheet is shown."""
        outcome = self._running.submit(answer)
        self.problem, self._outcome = "", outcome
        self._draw()
        return outcome

    def finish(self) -> Sheet:
        """End the interview; the sheet covers what was done so far."""
        sheet = self._running.finish()
        self._draw(self.save_button)
        return sheet

    @property
    def sheet(self) -> Sheet:
        """Times, ratings, strong and weak topics, and links. It can be read at any time."""
        return self._running.sheet

    @property
    def _running(self) -> MockInterview:
        """The interview. Raises ValueError where there is none, because no card matches level and topics."""
        if self.interview is None:
            raise ValueError(self.problem)
        return self.interview

    def _again(self) -> None:
        """Prepare another interview, with other cards."""
        self._seed = None  # the choice of cards is random again
        self._prepare()

    def _move_on(self) -> None:
        """Show the next card, with its answer folded, or the drill."""
        self._is_open = False
        self._draw(self.show_button if self.interview.stage == "card" else None)

    # -- display -------------------------------------------------------------------------------------------------------
    def _prepare(self, change: object = None) -> None:
        """A new interview for the level and language of the dials, which has not begun."""
        self.interview: MockInterview | None = None
        # Why there is no interview; whether the answer of the card is shown; the check of the last drill answer.
        self.problem, self._is_open, self._outcome = "", False, None
        chosen = {"level": self.level.value or None, "language": self.language.value, "seed": self._seed}
        try:
            self.interview = MockInterview(**chosen, **self._options)
        except ValueError as error:
            self.problem = str(error)
        self._draw()

    @property
    def stage(self) -> str:
        """ "ready", "card", "drill" or "over"; "nothing" where no card matches."""
        return self.interview.stage if self.interview else "nothing"

    @property
    def text(self) -> str:
        """What is shown now, as plain text."""
        lines = [self._text("mock.intro")] if self.stage == "ready" else []
        lines += [self._heading, self._question] if self.stage == "card" else []
        lines += [self.interview.drill.prompt.in_(self.language.value)] if self.stage == "drill" else []
        lines += [repr(self._outcome)] if self._outcome else []
        lines += [self.sheet.text] if self.stage == "over" else []
        return "\n".join([*lines, *([self.problem] if self.problem else [])])

    @property
    def _question(self) -> str:
        """The question of the current card."""
        return self.interview.card.question.in_(self.language.value)

    @property
    def _heading(self) -> str:
        """The number of the card, its level and its topic."""
        cards, card, language = self.interview.cards, self.interview.card, self.language.value
        number = {"n": cards.index(card) + 1, "all": len(cards)}
        level, topic = quiz_words(card.level, language), topic_name(card.topic, language)
        return self._text("mock.card", **number, level=level, topic=topic)

    def _draw(self, focus: ipywidgets.Widget | None = None) -> None:
        """Show the interview's state; `focus` is the control that then takes the keyboard's focus."""
        stage, language = self.stage, self.language.value
        self._draw_controls(stage)
        self.clock.speak(language)  # speak: in which language its texts are shown
        if self.interview is not None and self.interview.watch is not None:
            self.clock.show(self.interview.watch)
        display(self.clock, stage in ("card", "drill"))
        self.prompt.value = self._prompt_html(stage)
        self._draw_answer(self.interview.card if self._is_open else None)
        self.call.value = ""
        if stage == "drill":  # the line of code that submits an answer, to copy
            call = f"{name_in_notebook(self)}.submit({self.interview.drill.name})"  # such as mock.submit(average)
            self.call.value = call_html(call, language)
        outcome = self._outcome
        self.feedback.value = feedback_html(repr(outcome), is_right=outcome.passed) if outcome else ""
        self.sheet_page.show(self.sheet._repr_html_() if stage == "over" else "")
        # The interview's note says that the progress file is damaged or cannot be written; "" otherwise.
        self.note.value = alert_html(self.problem or (self.interview.note if self.interview else ""))
        if focus is not None:
            focus.focus()

    def _prompt_html(self, stage: str) -> str:
        """What is asked in this stage, as HTML."""
        language = self.language.value
        if stage == "ready":
            return f'<p class="rr-question">{escape(self._text("mock.intro"))}</p>'
        if stage == "card":
            return question_html(self._heading, self._question)
        if stage == "drill":
            drill = self.interview.drill
            meta = escape(self._text("mock.drill", topic=topic_name(drill.topic, language)))
            return f'<p class="rr-meta">{meta}</p>{drill_html(drill, language)}'
        return ""

    def _draw_controls(self, stage: str) -> None:
        """Show the buttons that belong to this stage, with their texts in the language of the dial."""
        is_asking = stage == "card"
        shown = {  # button: (key of its description, whether it is shown)
            self.begin_button: ("begin", stage == "ready"),
            self.show_button: ("show", is_asking and not self._is_open),
            self.skip_button: ("skip", is_asking),
            # Not the skip button again: a second Enter on it must not give up the drill.
            self.give_up_button: ("mock.give_up", stage == "drill"),
            self.finish_button: ("mock.finish", is_asking or stage == "drill"),
            self.save_button: ("mock.save", stage == "over"),
            self.again_button: ("mock.again", stage == "over"),
        }
        draw_buttons({each: (self._text(key), is_shown) for each, (key, is_shown) in shown.items()})
        self._draw_rating_row(is_asking and self._is_open)
        display(self._dials, stage in ("ready", "nothing"))

    @property
    def saved_html(self) -> str:
        """What a saved notebook shows: what a mock interview is, without its questions."""
        return f"<p>{escape(self._text('mock.intro'))}</p>"
