"""A whiteboard drill in a notebook: what to write, a clock, and what the check says of your function."""

from __future__ import annotations

import os
from html import escape
from typing import Any

import ipywidgets

from helpers.interview.drills import Attempt, Judge, Outcome, drill
from helpers.interview.stopwatch import Now
from helpers.widgets import sitting_parts as parts
from helpers.widgets.clock import Clock
from helpers.widgets.sitting_view import SittingView


class DrillView(SittingView):
    """`begin()` or its button starts the clock; `check(function)`, in the next cell, checks and notes.

    key: "03.average". check: `(key, answer) -> verdict`, such as helpers.grading.grade; `helpers.grading.drill(key)` is
    this with it. language, path, now: as in Attempt. Raises ValueError for a key that has no drill.
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
        self.attempt = Attempt(drill(key), check, language=language, path=path, now=now)
        self.clock = Clock(self.drill.minutes, language=language, now=now).show(self.attempt.watch)
        self.begin_button = parts.button(self.begin, style="primary")
        self.begin_button.description = parts.SAYS("begin", self.attempt.language)
        self.prompt = ipywidgets.HTML(parts.drill_html(self.drill, language))
        self.how, self.said, self.links = ipywidgets.HTML(), ipywidgets.HTML(), parts.Page()
        head = parts.row(self.clock, self.begin_button)
        super().__init__([parts.style(), head, self.prompt, self.how, self.said, self.links])
        self.add_class("rr-sitting")
        self._draw()

    @property
    def drill(self) -> Any:
        """The Drill."""
        return self.attempt.drill

    def begin(self) -> DrillView:
        """Start the clock; a second call changes nothing."""
        self.attempt.begin()
        self._draw()
        return self

    def check(self, answer: Any) -> Outcome:
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
        language, outcomes = self.attempt.language, self.attempt.outcomes
        self.clock.refresh()
        parts.display(self.begin_button, self.attempt.watch.began is None)
        name = parts.name_of(self, f'drill("{self.drill.key}")')
        self.how.value = parts.how_html(f"{name}.check({self.drill.name})", language)
        self.said.value = parts.said_html(repr(outcomes[-1]), is_right=outcomes[-1].passed) if outcomes else ""
        places = self.drill.places(language=language)
        more = parts.links_html("explained", places, language) + parts.one_answer_html(self.drill, language)
        self.links.show(more if outcomes else "")

    @property
    def kept(self) -> str:
        """The prompt."""
        minutes = f"<p>{escape(self.drill.key)} · {self.drill.minutes}:00</p>"
        return f"<div>{minutes}{parts.drill_html(self.drill, self.attempt.language)}</div>"
