"""Decides when Ctrl-C may end what the notebook's process does while its ranks run.

`defer_interrupts` handles an interrupt at the end of a block, so that a message is never half sent or half read.
`interrupts_in_waits_only` lets one come only in a wait, an `interruptible` block, so that an interrupted recovery never
leaves it half done. The file does not import torch.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


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
