"""Carries whole messages and printed text over the pipe between the notebook's kernel and a rank.

A message goes through the pipe in two writes, its length and its content. After half a message nothing more can be read
from that pipe, so no interrupt (Ctrl-C, the signal SIGINT) may come between the two. In the kernel `defer_interrupts`
prevents that, and on a rank `Outbox`. Whatever starts, ends or repairs ranks does so inside `interrupts_in_waits_only`,
so that an interrupt never leaves it half done. `Capture` is the rank's sys.stdout, and `print_by_rank` shows in the
notebook what the ranks printed. The file does not import torch.
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
from typing import Any

from helpers.ranks.sites import rank_names


class Outbox:
    """Sends a rank's messages from any thread, one complete message after the other.

    An exception from a signal handler between the two writes of a message would leave half of it in the pipe, so a
    handler that raises asks `defer` first. A garbage collection during a message may destroy an object that prints;
    what it prints is sent next.
    """

    def __init__(self, conn: Connection):
        self.conn = conn
        self.lock = threading.RLock()  # a thread that already sends can enter again, for example in a destructor
        self.owner = 0  # the id of the thread that sends, 0 while none does
        self.unsent: deque[tuple] = deque()
        self.deferred: Callable[[], None] | None = None  # a signal handler to call when the present message has left

    def send(self, message: tuple) -> None:
        """Send a message. Raises OSError if nobody is there to take it."""
        with self.lock:
            self.unsent.append(message)
            if self.owner:  # this thread is sending another message, and its loop below sends this one next
                return
            me = threading.get_ident()
            self.owner = me
            try:
                while self.unsent:
                    self.conn.send(self.unsent.popleft())
            finally:
                self.unsent.clear()  # after an error nobody takes the rest
                self.owner = 0
        if me == threading.main_thread().ident and self.deferred:
            deferred, self.deferred = self.deferred, None
            deferred()

    def defer(self, handle: Callable[[], None]) -> bool:
        """Whether the main thread, on which signal handlers run, is sending a message now.

        Then `handle` is called once that message has left; otherwise the handler may raise at once.
        """
        if self.owner != threading.main_thread().ident:
            return False
        self.deferred = handle
        return True


class InterruptedMessage(KeyboardInterrupt):
    """Raised by a second Ctrl-C within a message. The message stays incomplete, since its receiver may be gone."""


@contextlib.contextmanager
def defer_interrupts() -> Iterator[None]:
    """Inside this context, an interrupt of the main thread is handled at the end, so that no message is cut in half.

    Raises InterruptedMessage at once at a second interrupt.
    """
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


class _Gate:
    """Holds the interrupts of the main thread back until a wait begins. before: the handler that raises them."""

    def __init__(self, before: Callable[[int, FrameType | None], Any]):
        self.before = before
        self.is_open = False  # whether the main thread is in a wait in which an interrupt may be raised
        self.is_locked = False  # whether no wait opens the gate
        self.heard: list[FrameType | None] = []  # the frame of an interrupt that has not been raised yet

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGINT: raise it in a wait, and keep it elsewhere."""
        if self.is_open:
            self.is_open = False  # here, since the exception may come before the wait's own `finally` has begun
            self.before(number, frame)
            self.is_open = True  # the handler has raised nothing, so the wait goes on
        else:
            self.heard = [frame]

    def raise_heard(self) -> None:
        """Raise the interrupt that was kept, if there is one."""
        if self.heard:
            self.before(signal.SIGINT, self.heard.pop())


_gate: _Gate | None = None  # while the main thread is in `interrupts_in_waits_only`


def _gate_of_this_thread() -> _Gate | None:
    return _gate if threading.current_thread() is threading.main_thread() else None


@contextlib.contextmanager
def interrupts_in_waits_only() -> Iterator[None]:
    """Inside this context an interrupt of the main thread is raised only in a wait, which is an `interruptible` block.

    One that comes elsewhere is raised when the next wait begins, or at the end. It is dropped if an error ends the
    context, because then nothing is left to be interrupted.
    """
    global _gate
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before) or _gate is not None:
        yield
        return
    _gate = gate = _Gate(before)
    signal.signal(signal.SIGINT, gate.hear)
    try:
        yield
    finally:
        _gate = None
        signal.signal(signal.SIGINT, before)
    gate.raise_heard()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """A wait in which an interrupt may be raised, within `interrupts_in_waits_only`. It changes nothing else."""
    gate = _gate_of_this_thread()
    if gate is None or gate.is_locked:
        yield
        return
    try:
        gate.is_open = True
        gate.raise_heard()
        yield
    finally:
        gate.is_open = False


@contextlib.contextmanager
def uninterruptible() -> Iterator[None]:
    """Within `interrupts_in_waits_only`, no wait inside this context is interrupted, so all of them must be short."""
    gate = _gate_of_this_thread() or _Gate(signal.default_int_handler)  # a gate of its own, which nobody asks
    was_locked, gate.is_locked = gate.is_locked, True
    try:
        yield
    finally:
        gate.is_locked = was_locked


MAX_CHARACTERS = 200_000  # that one rank may print in one run


class Capture(io.TextIOBase):
    """A text stream that passes complete lines to `send`, and only counts what goes beyond MAX_CHARACTERS."""

    encoding = "utf-8"

    def fileno(self) -> int:
        """The process's own standard output, for whoever needs a descriptor: faulthandler, or a child's stdout.

        What is written there goes past `send`.
        """
        return 1

    def __init__(self, send: Callable[[str], None]):
        self._send = send
        self._begin()

    def _begin(self) -> None:
        self._parts: list[str] = []  # the text of an incomplete line
        # Numbers of characters: in _parts, sent, and dropped.
        self._buffered, self._sent, self._dropped = 0, 0, 0

    def write(self, text: str) -> int:
        """Send the complete lines of the text, and store the rest until its line is complete."""
        if self._sent > MAX_CHARACTERS:
            self._dropped += len(text)
            return len(text)
        # First, since a copy of a huge text may not fit into memory. Twice the limit is more than can be sent anyway.
        accepted = text[: 2 * MAX_CHARACTERS]
        self._dropped += len(text) - len(accepted)
        self._parts.append(accepted)
        self._buffered += len(accepted)
        if "\n" in accepted or self._buffered > MAX_CHARACTERS:
            complete, newline, rest = "".join(self._parts).rpartition("\n")
            if len(rest) > MAX_CHARACTERS:  # an endless line is sent as it is
                complete, newline, rest = complete + newline, rest, ""
            self._emit(complete + newline)
            self._parts, self._buffered = [rest], len(rest)
        return len(text)

    def _emit(self, text: str) -> None:
        """Send as much of the text as the limit allows, and count the rest as dropped."""
        room = MAX_CHARACTERS - self._sent
        self._sent += len(text)
        if room > 0:
            self._send(text[:room])
        self._dropped += max(0, len(text) - max(0, room))

    def finish(self) -> None:
        """End of a run: send the rest, say what was left out, and start counting anew."""
        if self._buffered:
            self._emit("".join(self._parts))
        if self._dropped:
            self._send(f"\n… and {self._dropped:,} more characters that a notebook could not hold\n")
        self._begin()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False


def print_by_rank(texts: dict[int, str], notes: Iterable[object] = ()) -> None:
    """Print what the ranks printed, each line behind its rank, then the notes.

    Ranks that printed the same text share its lines.
    """
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
