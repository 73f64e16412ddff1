"""A mock interview in a notebook: five cards, one drill, a clock, and the sheet. All can be skipped."""

from __future__ import annotations

import os
from collections.abc import Iterable
from html import escape
from typing import Any

import ipywidgets

from helpers.interview.cards import LEVELS, Card
from helpers.interview.drills import Judge, Outcome
from helpers.interview.links import link
from helpers.interview.mock import MockInterview
from helpers.interview.sheet import Sheet
from helpers.interview.stopwatch import Now
from helpers.interview.words import RATINGS, say, topic_name
from helpers.widgets import sitting_parts as parts
from helpers.widgets.clock import Clock
from helpers.widgets.dials import choice
from helpers.widgets.sitting_view import SheetView


class MockView(SheetView):
    """An interview. Without a front end: `.begin()`, `.reveal()`, `.rate("good")`, `.submit(function)`, `.skip()`,
    `.finish()`, `.sheet`.

    check: `(key, answer) -> verdict` for the drill; helpers.grading.mock_view() is this with the labs' checks. level,
    topics, language, seed, path, now, cards: as in MockInterview.
    """

    FILE = "mock-interview.md"
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
        self._seed = seed
        self.level = choice(parts.both(LEVELS), level or "", "level · 级别")
        self.language = parts.languages(language)
        self._make_controls(Clock(3, language=language, now=now))
        super().__init__(self._arranged())
        self.add_class("rr-sitting")
        for dial in (self.level, self.language):
            dial.layout.width, dial.style.description_width = "272px", "104px"
            dial.observe(self._prepare, names="value")
        self._prepare()

    # -- what is there -------------------------------------------------------------------------------------------------
    def _make_controls(self, clock: Clock) -> None:
        self.clock, self.links, self.sheet_page = clock, parts.Page(), parts.Page()
        self.sheet_page.layout.margin = "0 0 0 14px"
        self.asked, self.solution, self.how, self.said, self.note = (ipywidgets.HTML() for _ in range(5))
        self._rating_label = ipywidgets.HTML()
        self.begin_button = parts.button(self.begin, style="primary")
        self.show_button = parts.button(self.reveal, style="primary")
        self.rating_buttons = {name: parts.button(lambda name=name: self.rate(name)) for name in RATINGS}
        self.skip_button, self.give_up_button = parts.button(self.skip), parts.button(self.skip)
        self.finish_button = parts.button(self.finish)
        self.save_button, self.again_button = parts.button(self.save), parts.button(self._again)

    def _arranged(self) -> list[ipywidgets.Widget]:
        self._dials = parts.row(self.level, self.language)
        self._rating_box = parts.row(self._rating_label, *self.rating_buttons.values())
        buttons = (self.begin_button, self.show_button, self.skip_button, self.give_up_button, self.finish_button)
        below = parts.row(*buttons, self.save_button, self.again_button)
        shown = [self.clock, self.asked, self.solution, self.links, self.how, self.said, self.sheet_page]
        return [parts.style(), self._dials, *shown, self._rating_box, below, self.note]

    # -- what can be done ----------------------------------------------------------------------------------------------
    def begin(self) -> MockView:
        """The first card; a second call changes nothing."""
        if self.interview is not None:
            self.interview.begin()
            self._draw(self.show_button)
        return self

    def reveal(self) -> None:
        """The answer was spoken: stop the card's clock and show the card's own."""
        self._sitting.reveal()
        self._is_open = True
        self._draw(self.rating_buttons["good"])

    def rate(self, rating: str) -> None:
        """How the spoken answer held; then the next card, or the drill."""
        self._sitting.rate(rating)
        self._move_on()

    def skip(self) -> None:
        """Leave out the card at hand, or give up the drill."""
        self._sitting.skip()
        self._move_on()

    def submit(self, answer: Any) -> Outcome:
        """The drill's answer, a function or class. After one that passes comes the sheet."""
        outcome = self._sitting.submit(answer)
        self.problem, self._outcome = "", outcome
        self._draw()
        return outcome

    def finish(self) -> Sheet:
        """End it here; the sheet has what was done so far."""
        sheet = self._sitting.finish()
        self._draw(self.save_button)
        return sheet

    @property
    def sheet(self) -> Sheet:
        """Times, ratings, strong and weak topics, links; at any time."""
        return self._sitting.sheet

    @property
    def _sitting(self) -> MockInterview:
        if self.interview is None:
            raise ValueError(self.problem)
        return self.interview

    def _again(self) -> None:
        self._seed = None
        self._prepare()

    def _move_on(self) -> None:
        self._is_open = False
        self._draw(self.show_button if self.interview.stage == "card" else None)

    # -- what is shown -------------------------------------------------------------------------------------------------
    def _prepare(self, change: object = None) -> None:
        """An interview with the dials as they stand, not begun."""
        self.interview: MockInterview | None = None
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
        drill = [self.interview.drill.prompt.in_(self.language.value)] if self.stage == "drill" else []
        card = [self._meta, self._question] if self.stage == "card" else drill
        said = [repr(self._outcome)] if self._outcome else []
        over = [self.sheet.text] if self.stage == "over" else []
        ready = [self._say("mock.intro")] if self.stage == "ready" else []
        return "\n".join([*ready, *card, *said, *over, *([self.problem] if self.problem else [])])

    @property
    def _question(self) -> str:
        return self.interview.card.question.in_(self.language.value)

    @property
    def _meta(self) -> str:
        cards, card = self.interview.cards, self.interview.card
        number = {"n": cards.index(card) + 1, "all": len(cards)}
        named = {"level": say(card.level, self.language.value), "topic": topic_name(card.topic, self.language.value)}
        return self._say("mock.card", **number, **named)

    def _draw(self, focus: ipywidgets.Widget | None = None) -> None:
        stage, language = self.stage, self.language.value
        self._draw_controls(stage)
        self._draw_clock(stage, language)
        self.asked.value = self._asked_html(stage)
        card = self.interview.card if self._is_open else None
        self.solution.value = parts.answer_html(card, language) if card else ""
        found = [link(card, language=language)] if card else []
        self.links.show(parts.links_html("shown", found, language) if found else "")
        self.how.value = self._how_html() if stage == "drill" else ""
        outcome = self._outcome
        self.said.value = parts.said_html(repr(outcome), is_right=outcome.passed) if outcome else ""
        self.sheet_page.show(self.sheet._repr_html_() if stage == "over" else "")
        self.note.value = parts.alert_html(self.problem or (self.interview.note if self.interview else ""))
        if focus is not None:
            focus.focus()

    def _asked_html(self, stage: str) -> str:
        language = self.language.value
        if stage == "ready":
            return f'<p class="rr-question">{escape(self._say("mock.intro"))}</p>'
        if stage == "card":
            return parts.question_html(self._meta, self._question)
        if stage == "drill":
            drill = self.interview.drill
            meta = escape(self._say("mock.drill", topic=topic_name(drill.topic, language)))
            return f'<p class="rr-meta">{meta}</p>{parts.drill_html(drill, language)}'
        return ""

    def _how_html(self) -> str:
        call = f"{parts.name_of(self)}.submit({self.interview.drill.name})"
        return parts.how_html(call, self.language.value)

    def _draw_clock(self, stage: str, language: str) -> None:
        self.clock.speak(language)
        if self.interview is not None and self.interview.watch is not None:
            self.clock.show(self.interview.watch)
        parts.display(self.clock, stage in ("card", "drill"))

    def _draw_controls(self, stage: str) -> None:
        is_asking = stage == "card"
        self._rating_label.value = f'<span style="font-size:14px;margin-right:8px">{self._say("rate")}</span>'
        for name, each in self.rating_buttons.items():
            each.description = say(name, self.language.value)
        shown = {  # button: its words, and whether it is there
            self.begin_button: ("begin", stage == "ready"),
            self.show_button: ("show", is_asking and not self._is_open),
            self.skip_button: ("skip", is_asking),
            self.give_up_button: ("mock.give_up", stage == "drill"),  # of its own: a second Enter must not reach it
            self.finish_button: ("mock.finish", is_asking or stage == "drill"),
            self.save_button: ("mock.save", stage == "over"),
            self.again_button: ("mock.again", stage == "over"),
        }
        for each, (word, is_shown) in shown.items():
            each.description = self._say(word)
            parts.display(each, is_shown)
        parts.display(self._rating_box, is_asking and self._is_open)
        parts.display(self._dials, stage in ("ready", "nothing"))

    @property
    def kept(self) -> str:
        """What an interview is, without its questions."""
        return f"<p>{escape(self._say('mock.intro'))}</p>"
