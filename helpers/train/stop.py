"""Ctrl-C ends a run after a step: a rank that stopped in the middle of one would leave the others waiting."""

from __future__ import annotations

import os
import signal
from typing import Any

from helpers.ranks.waiting import SIGNALS
from helpers.words import book

say = book("train")
HEARD = (signal.SIGINT, signal.SIGTERM)  # the second is what a cluster sends when a job's time is over


class Stop:
    """`with Stop() as stop:`, then `stop.asked` says whether somebody wants an end. A second Ctrl-C interrupts at once.

    A signal that was ignored before, as `nohup` and `&` in a script do, is ignored on.
    """

    def __init__(self) -> None:
        self.asked, self.before = False, {}

    def __enter__(self) -> Stop:
        SIGNALS.heard = False  # gloo goes on waiting: what it waits for comes, since all ranks end the step
        for number in HEARD:
            if signal.getsignal(number) != signal.SIG_IGN:
                self.before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        SIGNALS.heard = True
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _ask(self, *_: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        if os.environ.get("LOCAL_RANK", "0") == "0":
            os.write(2, f"\n{say('stopping')}\n".encode())  # print() may be what was interrupted
