"""Plans which rank dies when, as seeded data, and carries a death out on the rank itself.

No torch is imported here, so that every job can use it; `python -m helpers train --chaos` does.
"""

from __future__ import annotations

import math
import os
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

from helpers.learner.words import book

words = book("elastic")  # the error messages of elastic.yaml, in every language
HOWS = ("sigkill", "exception", "hang", "freeze")  # ways to die, see Kill
DURING = ("step", "save")
MIN_DELAY = 1e-6  # seconds; signal.setitimer with 0 would set no alarm


@dataclass(frozen=True, kw_only=True)
class Kill:
    """A planned death of one rank. Raises ValueError for values that make none.

    how: "sigkill", the process is gone; "exception", its code raises; "hang", its code stops while its other threads
    go on; "freeze", the whole process stops.
    """

    rank: int
    step: int  # counted from 1
    how: str = "sigkill"
    during: str = "step"  # or in the "save" of a checkpoint after the step
    after: float = 0.0  # how far into the step or save, as a fraction of its usual duration

    def __post_init__(self) -> None:
        if self.how not in HOWS or self.during not in DURING:
            raise ValueError(words("kill.how", how=self.how, hows=list(HOWS), during=self.during, durings=list(DURING)))
        are_whole = type(self.rank) is type(self.step) is int  # isinstance would let a bool pass
        if not (are_whole and self.rank >= 0 and self.step >= 1 and _is_finite(self.after) and self.after >= 0):
            raise ValueError(words("kill.place", rank=self.rank, step=self.step, after=self.after))


def kill_plan(
    *, steps: int, ranks: int, rate: float, seed: int, hows: Sequence[str] = ("sigkill",), save_every: int | None = None
) -> tuple[Kill, ...]:
    """Draws the kills of a job: in each step, with probability `rate`, a random rank ends at a random moment.

    hows: ways to end, of which one is drawn. save_every: in steps that end with a save, half of the deaths fall into
    the save. The same seed gives the same plan, whatever was drawn from Python's own generator before, and a longer
    run's plan begins with the shorter run's. Raises ValueError for a rate outside 0 to 1, and fewer than one step or
    rank.
    """
    if not hows:
        raise ValueError(words("kill.how", how=hows, hows=list(HOWS), during="step", durings=list(DURING)))
    are_whole = type(steps) is type(ranks) is int and (save_every is None or type(save_every) is int)
    if not (are_whole and _is_finite(rate) and 0 <= rate <= 1 and steps >= 1 and ranks >= 1):
        raise ValueError(words("kill.plan", rate=rate, steps=steps, ranks=ranks))
    generator, plan = random.Random(seed), []
    for step in range(1, steps + 1):
        # Every step draws five numbers, even if nobody dies, so that a longer plan begins with the shorter one.
        draw, rank, how, in_save, after = (generator.random() for _ in range(5))
        if draw >= rate:
            continue
        is_in_save = bool(save_every) and step % save_every == 0 and in_save < 0.5
        during, how = "save" if is_in_save else "step", hows[int(how * len(hows))]
        plan.append(Kill(rank=int(rank * ranks), how=how, step=step, during=during, after=after))
    return tuple(plan)


def _is_finite(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def arm(kill: Kill, usual_seconds: float) -> None:
    """Makes this process carry out `kill` in `kill.after * usual_seconds` seconds. Call it in the main thread.

    A timer interrupts whatever Python line runs at that moment, so that a death can come at any line.
    """
    signal.signal(signal.SIGALRM, lambda *_: strike(kill))
    signal.setitimer(signal.ITIMER_REAL, max(kill.after * usual_seconds, MIN_DELAY))


def strike(kill: Kill) -> None:
    """Carries out the kill at once: the process dies, raises RuntimeError, or stops."""
    match kill.how:
        case "sigkill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "exception":
            raise RuntimeError(words("kill.raised", rank=kill.rank, step=kill.step))
    while True:  # "hang": this thread, which is the main thread, never goes on
        time.sleep(3600)
