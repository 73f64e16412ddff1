"""A clock that counts down in the browser, also while the kernel works. It tells when time is up, cuts nothing off."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from helpers.interview.stopwatch import Now, Stopwatch, clock_text, utc_now
from helpers.learner.words import book
from helpers.learner.words import language as chosen
from helpers.widgets.bundle import bundle

STATIC = Path(__file__).parent / "static"
SAYS = book("sitting").section("clock")


class Clock(anywidget.AnyWidget):
    """`begin()` starts it, `stop()` ends it. Without a front end: `.text`, `.watch.seconds`.

    minutes: the limit. language: "en" or "zh", if not the one chosen. now: as in Stopwatch. `show(watch)` makes it the
    clock of a Stopwatch that somebody else begins and stops; after either, `refresh()`. A screen reader hears of 5
    minutes, 1 minute, and the end.
    """

    TEXT = "[widget] Clock: counts down against a limit, and tells when time is up"
    _esm = STATIC / "clock.js"
    _css = STATIC / "clock.css"

    limit = traitlets.Float().tag(sync=True)
    began = traitlets.Float(0.0).tag(sync=True)  # seconds since 1970 on the kernel's clock; 0: not yet
    ended = traitlets.Float(0.0).tag(sync=True)
    words = traitlets.Dict().tag(sync=True)

    def __init__(self, minutes: float = 15, *, language: str | None = None, now: Now | None = None) -> None:
        self._now = now or utc_now
        self.watch = Stopwatch(60.0 * minutes, now)
        super().__init__(limit=self.watch.limit, words=_words(language))
        self.on_msg(self._tell_time)

    def begin(self) -> Clock:
        """Start; a second call changes nothing."""
        self.watch.begin()
        return self.refresh()

    def stop(self) -> Clock:
        """Stop; it shows what was used."""
        self.watch.stop()
        return self.refresh()

    def show(self, watch: Stopwatch) -> Clock:
        """Show this stopwatch from now on."""
        self.watch = watch
        return self.refresh()

    def refresh(self) -> Clock:
        """Send what the stopwatch says; once, not a message a trait."""
        began, ended = self.watch.began, self.watch.ended
        with self.hold_sync():
            self.limit = self.watch.limit
            self.began = began.timestamp() if began else 0.0
            self.ended = ended.timestamp() if ended else 0.0
        return self

    def speak(self, language: str) -> None:
        """Words in "en" or "zh"."""
        self.words = _words(language)

    @property
    def text(self) -> str:
        """What is shown now, as plain text."""
        seconds, limit = self.watch.seconds, self.watch.limit
        if self.watch.began is None:
            state, shown = "ready", limit
        elif self.watch.ended is not None:
            state, shown = "ended", seconds
        else:
            state, shown = ("over", seconds - limit) if seconds > limit else ("running", limit - seconds)
        return f"{clock_text(shown)} {self.words[state].format(limit=clock_text(limit))}"

    def _tell_time(self, widget: object, content: Any, buffers: object) -> None:
        """The browser's clock may be another one than the kernel's: it asks for the time once."""
        if isinstance(content, dict) and content.get("ask") == "now":
            self.send({"now": self._now().timestamp()})

    def __repr__(self) -> str:
        return self.TEXT

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        """A saved notebook keeps the limit alone: neither when it began nor how far it is."""
        text = escape(f"{clock_text(self.limit)} {self.words['ready'].format(limit=clock_text(self.limit))}")
        return bundle(super()._repr_mimebundle_(**kwargs), self.TEXT, {"text/html": f"<p>{text}</p>"})


def _words(language: str | None) -> dict[str, str]:
    return {name: words.in_(chosen(language)) for name, words in SAYS.items()}
