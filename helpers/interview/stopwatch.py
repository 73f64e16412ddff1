"""Time against a limit. It tells and never cuts off."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

Now = Callable[[], datetime]


def utc_now() -> datetime:
    """The time of this machine, aware."""
    return datetime.now(UTC)


class Stopwatch:
    """limit: seconds. now: what tells the time, an aware datetime. Not running before `begin()`."""

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
    def is_running(self) -> bool:
        return self.began is not None and self.ended is None

    @property
    def seconds(self) -> float:
        """Since the beginning, until the stop; 0 before. Never negative, whatever the machine's clock does."""
        if self.began is None:
            return 0.0
        return max(0.0, ((self.ended or self._now()) - self.began).total_seconds())

    @property
    def is_over(self) -> bool:
        return self.seconds > self.limit


def clock_text(seconds: float) -> str:
    """Seconds as on a clock: 75 as "1:15"."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02}"
