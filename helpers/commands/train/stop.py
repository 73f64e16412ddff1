"""Ctrl-C and SIGTERM end a run after a step: a rank that stopped inside of one would leave the others waiting."""

from __future__ import annotations

import os
import signal
from types import FrameType

from helpers.learner.words import book
from helpers.ranks.gloo import SIGNALS

say = book("train")
HEARD = (signal.SIGINT, signal.SIGTERM)  # the second is what a cluster sends when a job's time is over


class Stop:
    """`with Stop(25) as stop:`, then `stop.asked` tells whether somebody wants an end. A second Ctrl-C ends it at once.

    grace: the seconds after SIGTERM in which the step and a save must be done. Whoever sent it kills after that, so the
    run is interrupted where it stands (`is_late`), and can still say which checkpoint there is.
    A signal that was ignored before, as `nohup` and `&` in a script do, is ignored on.
    """

    def __init__(self, grace: float = 25.0) -> None:
        self.grace, self.number, self.before = grace, 0, {}
        self.is_timed = self.is_late = False

    @property
    def asked(self) -> bool:
        return self.number > 0

    def __enter__(self) -> Stop:
        SIGNALS.heard = False  # gloo goes on waiting: what it waits for comes, since all ranks end the step
        for number in HEARD:
            if signal.getsignal(number) != signal.SIG_IGN:
                self.before[number] = signal.signal(number, self._ask)
        self.before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._be_late)
        return self

    def __exit__(self, *_: object) -> None:
        SIGNALS.heard = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        """A cluster may send its signal twice; a person who presses twice means it."""
        again, self.number = self.asked, self.number or number
        if again and number == signal.SIGINT:
            raise KeyboardInterrupt
        if number == signal.SIGTERM and not self.is_timed:  # the first one counts
            self.is_timed = True
            signal.setitimer(signal.ITIMER_REAL, self.grace)
        if not again and os.environ.get("LOCAL_RANK", "0") == "0":
            text = say("stopping") if number == signal.SIGINT else say("preempted", grace=self.grace)
            os.write(2, f"\n{text}\n".encode())  # print() may be what was interrupted

    def _be_late(self, number: int, frame: FrameType | None) -> None:
        self.is_late = True
        raise KeyboardInterrupt
