"""--chaos: ranks die as a seeded plan says, all start again from the newest checkpoint; what that cost is counted."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping

from helpers.commands.train.options import Settings, best_interval
from helpers.elastic.chaos import Kill, kill_plan
from helpers.learner.words import book

say = book("train")


class Chaos:
    """Who is to die, and the account of a run. done: the step after which it begins."""

    def __init__(self, settings: Settings, done: int):
        self.rate, self.every = settings.chaos, settings.save_every
        how = {"rate": settings.chaos, "seed": settings.seed, "save_every": settings.save_every}
        plan = kill_plan(steps=settings.steps, ranks=settings.plan.world_size, **how) if settings.chaos else ()
        self.planned = {(kill.step, kill.during): kill for kill in plan if kill.step > done}
        self.taken = {"step": [1.0], "save": [1.0]}  # seconds, first a guess
        self.struck: Kill | None = None  # of the present step or save
        self.num_deaths = self.done_again = 0
        self.lost, self.since = 0.0, 0.0
        self.losses: dict[int, float] = {}

    def enter(self, during: str, step: int) -> tuple[Kill | None, float]:
        """Who dies in this step or save, once and not again when it is done again; and its usual seconds."""
        self.struck, self.since = self.planned.pop((step, during), None), time.perf_counter()
        return self.struck, statistics.median(self.taken[during][-9:])

    def leave(self, during: str) -> float:
        """It is done: how many seconds it took."""
        self.taken[during].append(time.perf_counter() - self.since)
        return self.taken[during][-1]

    def stepped(self, step: int, loss: float) -> None:
        seconds, again = self.leave("step"), step in self.losses
        self.done_again += again
        self.lost += seconds * again
        self.losses[step] = loss

    def restarted(self) -> float:
        """All ranks are there again: what the death cost so far, from the beginning of the step that it ended."""
        seconds = time.perf_counter() - self.since
        self.num_deaths += 1
        self.lost += seconds
        return seconds

    def begin(self) -> str:
        best = self.every == best_interval(self.rate)
        return say("chaos.begin", rate=self.rate, every=self.every) + say("chaos.best", rate=self.rate) * best

    def account(self) -> str:
        if not self.num_deaths:
            return say("chaos.nobody", count=len(self.losses), share=(1 - self.rate) ** len(self.losses))
        how = {"again": self.done_again, "deaths": self.num_deaths, "seconds": self.lost}
        return say("chaos.account", steps=len(self.losses), **how)

    def compared(self, undisturbed: Mapping[int, float]) -> tuple[bool, str]:
        """Whether the losses are those of the run without a death, and a sentence about it."""
        pairs = {step: (self.losses[step], loss) for step, loss in undisturbed.items()}
        for step, (mine, other) in pairs.items():
            if mine != other:
                return False, say("chaos.other", step=step, mine=mine, other=other)
        return True, say("chaos.equal", count=len(pairs))
