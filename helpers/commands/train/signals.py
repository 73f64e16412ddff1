"""Ends a run after the present step on Ctrl-C and SIGTERM.

A rank that stopped inside a step would leave the other ranks waiting in their collectives. Usually a Ctrl-C also
interrupts a rank that waits in gloo. Within `StopRequest`, `SIGNALS.ends_waits` of the gloo module is False, so that
the rank goes on waiting and finishes its step with the others.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

from helpers.learner.words import book
from helpers.ranks.processes.spec import launched
from helpers.ranks.wire.gloo import SIGNALS

words = book("train")
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)  # a cluster sends SIGTERM when the time of a job is over


class StopRequest:
    """Inside `with StopRequest(25) as stop:`, `stop.is_requested` is True once a signal has come.

    A second Ctrl-C raises KeyboardInterrupt at once.
    grace: the seconds after SIGTERM in which the step and a save must be done. The sender of SIGTERM kills the process
    after its own limit, so after `grace` the run is interrupted wherever it is (`is_late`) and can still report which
    checkpoint it has. A signal that was ignored before, as in `nohup` or a script with `&`, stays ignored.
    number: of the first signal that came, 0 before. before: signal -> the handler that it had outside the block.
    is_timed: whether the time after SIGTERM runs.
    """

    def __init__(self, grace: float = 25.0) -> None:
        self.grace, self.number, self.before = grace, 0, {}
        self.is_timed = self.is_late = False

    @property
    def is_requested(self) -> bool:
        return self.number > 0

    def __enter__(self) -> StopRequest:
        SIGNALS.ends_waits = False  # gloo may go on waiting, since all ranks finish the step
        for number in STOP_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                self.before[number] = signal.signal(number, self._ask)
        self.before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._be_late)
        return self

    def __exit__(self, *_: object) -> None:
        SIGNALS.ends_waits = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        """Handles a signal. A cluster may send SIGTERM twice, so the second is ignored; a second Ctrl-C interrupts."""
        was_requested = self.is_requested
        self.number = self.number or number
        if was_requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        if number == signal.SIGTERM and not self.is_timed:  # the time runs from the first one
            self.is_timed = True
            signal.setitimer(signal.ITIMER_REAL, self.grace)  # after which SIGALRM calls `_be_late`
        place = launched()
        if not was_requested and (place is None or place.local_rank == 0):
            text = words("stopping") if number == signal.SIGINT else words("preempted", grace=self.grace)
            os.write(2, f"\n{text}\n".encode())  # not print(), which may be what was interrupted

    def _be_late(self, number: int, frame: FrameType | None) -> None:
        """Interrupts the run, because the time after SIGTERM is over."""
        self.is_late = True
        raise KeyboardInterrupt
