"""Who dies when: seeded data, and how a rank carries it out on itself. No torch, so that every job can use it."""

from __future__ import annotations

import math
import os
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

from helpers.learner.words import book

say = book("elastic")
HOWS = ("sigkill", "exception", "hang", "freeze")
DURING = ("step", "save")


@dataclass(frozen=True, kw_only=True)
class Kill:
    """Rank `rank` ends in step `step`, counted from 1, or in the save after it.

    how: "sigkill", the process is gone; "exception", its code raises; "hang", its code stops while its other threads
    live on; "freeze", the whole process stops. after: how far into the step or save, as a share of what it takes.
    Raises ValueError for what is none of these.
    """

    rank: int
    step: int
    how: str = "sigkill"
    during: str = "step"
    after: float = 0.0

    def __post_init__(self) -> None:
        if self.how not in HOWS or self.during not in DURING:
            raise ValueError(say("kill.how", how=self.how, hows=list(HOWS), during=self.during, durings=list(DURING)))
        whole = type(self.rank) is type(self.step) is int
        if not (whole and self.rank >= 0 and self.step >= 1 and _is_number(self.after) and self.after >= 0):
            raise ValueError(say("kill.place", rank=self.rank, step=self.step, after=self.after))


def kill_plan(
    *, steps: int, ranks: int, rate: float, seed: int, hows: Sequence[str] = ("sigkill",), save_every: int | None = None
) -> tuple[Kill, ...]:
    """For each of `steps` steps: with probability `rate`, a random one of `ranks` ends at a random moment in it.

    save_every: after steps that end with a save, half of the deaths fall into the save. The same seed gives the same
    plan, whatever Python's own generator did before, and the first steps of a longer run's plan are the shorter one's.
    Raises ValueError for a rate outside 0 to 1, and fewer than one step or rank.
    """
    if not hows:
        raise ValueError(say("kill.how", how=hows, hows=list(HOWS), during="step", durings=list(DURING)))
    whole = type(steps) is type(ranks) is int and (save_every is None or type(save_every) is int)
    if not (whole and _is_number(rate) and 0 <= rate <= 1 and steps >= 1 and ranks >= 1):
        raise ValueError(say("kill.plan", rate=rate, steps=steps, ranks=ranks))
    dice, plan = random.Random(seed), []
    for step in range(1, steps + 1):
        happens, rank, how, in_save, after = (dice.random() for _ in range(5))
        if happens >= rate:
            continue
        saves = bool(save_every) and step % save_every == 0 and in_save < 0.5
        who = {"rank": int(rank * ranks), "how": hows[int(how * len(hows))]}
        plan.append(Kill(**who, step=step, during="save" if saves else "step", after=after))
    return tuple(plan)


def _is_number(value: object) -> bool:
    """A finite one."""
    return type(value) in (int, float) and math.isfinite(value)


def arm(kill: Kill, usual: float) -> None:
    """Have this process carry out `kill`, `kill.after` times `usual` seconds from now. In the main thread alone.

    An alarm interrupts whatever Python line is under way then; nobody has chosen that line.
    """
    signal.signal(signal.SIGALRM, lambda *_: strike(kill))
    signal.setitimer(signal.ITIMER_REAL, max(kill.after * usual, 1e-6))


def strike(kill: Kill) -> None:
    """Die, raise RuntimeError, or stop, here and now."""
    match kill.how:
        case "sigkill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "exception":
            raise RuntimeError(say("kill.raised", rank=kill.rank, step=kill.step))
    while True:
        time.sleep(3600)
