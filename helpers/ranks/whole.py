"""Ctrl-C waits for the end of a message: behind half of one, nothing more can be read from that pipe. No torch."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class Torn(KeyboardInterrupt):
    """A second Ctrl-C within a message: whoever was to take it may be gone, so it is left in the middle."""


@contextlib.contextmanager
def whole_messages() -> Iterator[None]:
    """Within, what an interrupt of the main thread does is done at the end. Raises Torn at once at a second one."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    heard: list[FrameType | None] = []

    def note(number: int, frame: FrameType | None) -> None:
        heard.append(frame)
        if len(heard) > 1:
            raise Torn

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if heard:
        before(signal.SIGINT, heard[0])
