"""Carries whole messages and printed text over the pipe between the notebook's kernel and a rank.

A message goes through the pipe in two writes, its length and its content. After half a message nothing more can be read
from that pipe, so nothing may interrupt a message: `defer_interrupts` in the kernel, `Outbox` on a rank. `Capture` is
the rank's sys.stdout, and `print_by_rank` shows in the notebook what the ranks printed. The file does not import torch.
"""

from __future__ import annotations

import contextlib
import io
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from types import FrameType

from helpers.ranks.sites import rank_names


class Outbox:
    """Sends from any thread, one message after the other.

    A signal's exception between the two writes of a message would tear it: whoever handles a signal asks `put_off`.
    A collection of garbage within a message may destroy something that prints: what it says goes next.
    """

    def __init__(self, conn: Connection):
        self.conn = conn
        self.lock, self.owner = threading.RLock(), 0  # the thread that sends
        self.unsent: deque[tuple] = deque()
        self.later: Callable[[], None] | None = None

    def send(self, message: tuple) -> None:
        """Raises OSError if nobody is there to take it."""
        with self.lock:
            self.unsent.append(message)
            if self.owner:
                return
            me = threading.get_ident()
            self.owner = me
            try:
                while self.unsent:
                    self.conn.send(self.unsent.popleft())
            finally:
                self.unsent.clear()
                self.owner = 0
        if me == threading.main_thread().ident and self.later:
            later, self.later = self.later, None
            later()

    def put_off(self, handle: Callable[[], None]) -> bool:
        """For a handler of signals, which run on the main thread: whether a message is on its way from there.

        Then `handle` is called once it has left.
        """
        if self.owner != threading.main_thread().ident:
            return False
        self.later = handle
        return True


class InterruptedMessage(KeyboardInterrupt):
    """A second Ctrl-C within a message: whoever was to take it may be gone, so it is left in the middle."""


@contextlib.contextmanager
def defer_interrupts() -> Iterator[None]:
    """Within, what an interrupt of the main thread does is done at the end. Raises Torn at once at a second one."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    heard: list[FrameType | None] = []

    def note(number: int, frame: FrameType | None) -> None:
        heard.append(frame)
        if len(heard) > 1:
            raise InterruptedMessage

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if heard:
        before(signal.SIGINT, heard[0])


MAX_CHARACTERS = 200_000  # of one run on one rank


class Capture(io.TextIOBase):
    """A text stream that hands whole lines to `send`, and counts what goes beyond the limit instead of sending it."""

    encoding = "utf-8"

    def __init__(self, send: Callable[[str], None]):
        self._send = send
        self._begin()

    def _begin(self) -> None:
        self._parts, self._held, self._sent, self._dropped = [], 0, 0, 0

    def write(self, text: str) -> int:
        if self._sent > MAX_CHARACTERS:
            self._dropped += len(text)
            return len(text)
        kept = text[: 2 * MAX_CHARACTERS]  # before anything is copied: it may be half as long as memory
        self._dropped += len(text) - len(kept)
        self._parts.append(kept)
        self._held += len(kept)
        if "\n" in kept or self._held > MAX_CHARACTERS:
            whole, newline, rest = "".join(self._parts).rpartition("\n")
            if len(rest) > MAX_CHARACTERS:
                whole, newline, rest = whole + newline, rest, ""
            self._emit(whole + newline)
            self._parts, self._held = [rest], len(rest)
        return len(text)

    def _emit(self, text: str) -> None:
        room = MAX_CHARACTERS - self._sent
        self._sent += len(text)
        if room > 0:
            self._send(text[:room])
        self._dropped += max(0, len(text) - max(0, room))

    def finish(self) -> None:
        """End of a run: send the rest, say what was left out, and start counting anew."""
        if self._held:
            self._emit("".join(self._parts))
        if self._dropped:
            self._send(f"\n… and {self._dropped:,} more characters that a notebook could not hold\n")
        self._begin()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False


def print_by_rank(texts: dict[int, str], notes: Iterable[object] = ()) -> None:
    """Print by rank, each line behind its rank; ranks that said the same share their lines. Then the notes."""
    groups: dict[str, list[int]] = {}
    for rank, text in sorted(texts.items()):
        if text:
            groups.setdefault(text.rstrip("\n"), []).append(rank)
    labels = {text: str(rank_names(ranks)) for text, ranks in groups.items()}
    width = max(map(len, labels.values()), default=0)
    for text, label in labels.items():
        for line in text.split("\n"):
            print(f"{label:<{width}} │ {line}".rstrip())
    for one in notes:
        print(one)
