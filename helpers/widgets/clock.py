"""A clock that counts down in the browser, also while the kernel works. It tells when time is up, cuts nothing off."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from helpers.interview.stopwatch import Now, Stopwatch, clock_text, utc_now
from helpers.widgets.bundle import bundle

STATIC = Path(__file__).parent / "static"
WORDS = {
    "en": {
        "ready": "not begun", "running": "of {limit} left", "over": "over the {limit}; you may go on",
        "ended": "of {limit} used", "minutes": "{n} minutes left.", "minute": "1 minute left.",
        "up": "Time is up. You may go on.",
    },
    "zh": {
        "ready": "尚未开始", "running": "剩余（限时 {limit}）", "over": "超时（限时 {limit}），可以继续",
        "ended": "用时（限时 {limit}）", "minutes": "还剩 {n} 分钟。", "minute": "还剩 1 分钟。",
        "up": "时间到，可以继续。",
    },
}  # fmt: skip


class Clock(anywidget.AnyWidget):
    """`begin()` starts it, `stop()` ends it. Without a front end: `.text`, `.watch.seconds`.

    minutes: the limit. language: "en" or "zh". now: as in Stopwatch. `show(watch)` makes it the clock of a Stopwatch
    that somebody else begins and stops; after either, `refresh()`. A screen reader hears of 5 minutes, 1 minute, and
    the end.
    """

    TEXT = "[widget] Clock: counts down against a limit, and tells when time is up"
    _esm = STATIC / "clock.js"
    _css = STATIC / "clock.css"

    limit = traitlets.Float().tag(sync=True)
    began = traitlets.Float(0.0).tag(sync=True)  # seconds since 1970 on the kernel's clock; 0: not yet
    ended = traitlets.Float(0.0).tag(sync=True)
    words = traitlets.Dict().tag(sync=True)

    def __init__(self, minutes: float = 15, *, language: str = "en", now: Now | None = None) -> None:
        self._now = now or utc_now
        self.watch = Stopwatch(60.0 * minutes, now)
        super().__init__(limit=self.watch.limit, words=WORDS[language])
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
        self.words = WORDS[language]

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
