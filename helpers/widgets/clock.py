"""Provides Clock, which counts down in the browser, also while the kernel works. It only says that time is up.

A conversation in a notebook shows one if its questions have a clock; `Clock(15)` also works alone.
"""

from __future__ import annotations

from html import escape
from typing import Any

import anywidget
import traitlets

from helpers.interview.drills import Now, Stopwatch, clock_text, utc_now
from helpers.interview.steps import ClockState
from helpers.learner.words import book
from helpers.learner.words import language as chosen_language
from helpers.widgets.view import STATIC, SavedWidget

words = book("sitting").section("clock")  # the texts that are shown, by name: learner/words/sitting.yaml


class Clock(SavedWidget, anywidget.AnyWidget):
    """`begin()` starts it, `stop()` ends it. Without a front end: `.text`, `.watch.seconds`.

    minutes: the limit. language: "en" or "zh", if it is not the one chosen for the course. now: a function that returns
    the time, for tests. `show(state)` displays a clock that other code starts and stops. A screen reader announces 5
    minutes, 1 minute, and the end.
    """

    TEXT = "[widget] Clock: counts down against a limit, and tells when time is up"
    _esm = STATIC / "clock.js"
    _css = STATIC / "clock.css"

    # sync=True: the browser has each of these too, and both sides see a change.
    limit = traitlets.Float().tag(sync=True)  # seconds
    began = traitlets.Float(0.0).tag(sync=True)  # seconds since 1970 on the kernel's clock; 0: not yet
    ended = traitlets.Float(0.0).tag(sync=True)  # likewise
    words = traitlets.Dict().tag(sync=True)  # the texts of the module's `words` in one language, for clock.js

    def __init__(self, minutes: float = 15, *, language: str | None = None, now: Now | None = None) -> None:
        self._now = now or utc_now  # a function that returns the time; tests give another one
        self.watch = Stopwatch(60.0 * minutes, now)
        super().__init__(limit=self.watch.limit, words=_texts(language))
        self.on_msg(self._tell_time)

    def begin(self) -> Clock:
        """Start the clock; a second call changes nothing."""
        self.watch.begin()
        return self.show(self.watch.state)

    def stop(self) -> Clock:
        """Stop the clock, which then shows the time that was used."""
        self.watch.stop()
        return self.show(self.watch.state)

    def show(self, state: ClockState) -> Clock:
        """Display this state of a clock, which is sent to the browser in one message."""
        with self.hold_sync():
            self.limit, self.began, self.ended = state.limit, state.began or 0.0, state.ended or 0.0
        return self

    def speak(self, language: str) -> None:
        """Show the clock's texts in "en" or "zh"."""
        self.words = _texts(language)

    @property
    def text(self) -> str:
        """What is shown now, as plain text."""
        used = (self.ended or self._now().timestamp()) - self.began if self.began else 0.0
        if not self.began:
            state, shown = "ready", self.limit
        elif self.ended:
            state, shown = "ended", used
        else:
            state, shown = ("over", used - self.limit) if used > self.limit else ("running", self.limit - used)
        return f"{clock_text(shown)} {self.words[state].format(limit=clock_text(self.limit))}"

    def _tell_time(self, widget: object, content: Any, buffers: object) -> None:
        """Answer the browser, which asks once for the kernel's time because its own clock may differ."""
        if isinstance(content, dict) and content.get("ask") == "now":
            self.send({"now": self._now().timestamp()})

    @property
    def saved_html(self) -> str:
        """The limit alone: a saved notebook says neither when the clock began nor how far it is."""
        text = escape(f"{clock_text(self.limit)} {self.words['ready'].format(limit=clock_text(self.limit))}")
        return f"<p>{text}</p>"


def _texts(language: str | None) -> dict[str, str]:
    """The texts of the clock, by name, in one language."""
    return {name: text.in_(chosen_language(language)) for name, text in words.items()}
