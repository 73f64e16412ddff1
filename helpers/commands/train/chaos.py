"""Plans the deaths of `train --chaos` from a seed, and counts what they cost.

A death is a rank that is killed in a step or in a save, to see what failures cost. After each death all ranks start
again from the newest checkpoint, so the steps since then are done again. A `Kill` is one planned death, with the rank,
the step, and "step" or "save" as `during`. Whoever runs a step calls `enter` before it and `stepped` after it; a save
has `enter` and `leave`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping

from helpers.commands.train.options import TrainOptions, best_interval
from helpers.elastic.chaos import Kill, kill_plan
from helpers.learner.words import book

words = book("train")
RECENT = 9  # steps or saves from which the usual time is taken


class Chaos:
    """The planned deaths of a run and their cost. done: the step after which the run starts.

    rate: the probability of a death per step. every: steps between two saves.
    planned: (step, "step" or "save") -> the death in it. taken: the seconds that the steps and saves so far have taken.
    struck: the death that is planned in the present step or save, None if there is none.
    num_deaths, done_again: how many ranks were killed, and how many steps were done twice.
    lost: seconds that the deaths have cost. since: the time.perf_counter() at which the present step or save began.
    losses: step -> loss.
    """

    def __init__(self, settings: TrainOptions, done: int):
        self.rate, self.every = settings.chaos, settings.save_every
        options = {"rate": settings.chaos, "seed": settings.seed, "save_every": settings.save_every}
        plan = kill_plan(steps=settings.steps, ranks=settings.plan.world_size, **options) if settings.chaos else ()
        self.planned = {(kill.step, kill.during): kill for kill in plan if kill.step > done}
        self.taken = {"step": [1.0], "save": [1.0]}  # the first value is a guess
        self.struck: Kill | None = None
        self.num_deaths = self.done_again = 0
        self.lost, self.since = 0.0, 0.0
        self.losses: dict[int, float] = {}

    def enter(self, during: str, step: int) -> tuple[Kill | None, float]:
        """The death planned in this step or save, and the seconds that a step or save usually takes.

        A step that is done again has no death in it. during: "step" or "save".
        """
        self.struck, self.since = self.planned.pop((step, during), None), time.perf_counter()
        return self.struck, statistics.median(self.taken[during][-RECENT:])

    def leave(self, during: str) -> float:
        """Ends the step or save that `enter` began, and returns its seconds."""
        self.taken[during].append(time.perf_counter() - self.since)
        return self.taken[during][-1]

    def stepped(self, step: int, loss: float) -> None:
        """Counts a finished step. If it had been done before a death already, its time counts as lost."""
        seconds = self.leave("step")
        if step in self.losses:
            self.done_again += 1
            self.lost += seconds
        self.losses[step] = loss

    def restarted(self) -> float:
        """All ranks are running again. Returns the seconds lost since the start of the step in which a rank died."""
        seconds = time.perf_counter() - self.since
        self.num_deaths += 1
        self.lost += seconds
        return seconds

    def begin(self) -> str:
        """The sentence about the rate of deaths and the saves, and whether these are as frequent as is best."""
        text = words("chaos.begin", rate=self.rate, every=self.every)
        return text + words("chaos.best", rate=self.rate) if self.every == best_interval(self.rate) else text

    def account(self) -> str:
        """The sentence that says what the deaths cost, or that nobody died and how probable that was."""
        if not self.num_deaths:
            return words("chaos.nobody", count=len(self.losses), share=(1 - self.rate) ** len(self.losses))
        values = {"again": self.done_again, "deaths": self.num_deaths, "seconds": self.lost}
        return words("chaos.account", steps=len(self.losses), **values)

    def compared(self, undisturbed: Mapping[int, float]) -> tuple[bool, str]:
        """Whether the losses equal the losses of a run without deaths, and the sentence that says so."""
        pairs = {step: (self.losses[step], loss) for step, loss in undisturbed.items()}
        for step, (with_deaths, without) in pairs.items():
            if with_deaths != without:
                return False, words("chaos.other", step=step, mine=with_deaths, other=without)
        return True, words("chaos.equal", count=len(pairs))
