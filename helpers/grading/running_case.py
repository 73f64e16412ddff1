"""Runs the cases of a task in this process: on a rank, or where there are no ranks.

RunningCase       one case of a task; if `run_submission` is a generator, it stops at each yield, so cases take turns
run_alternating   runs all cases of a task

A *case* is one set of inputs, and a Task's `run_submission(submitted, inputs, context)` calls the learner's function,
`submitted`. ObservedFunction notes what each call does to its arguments.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from helpers.grading.observed_function import ObservedFunction
from helpers.grading.task import RankContext, Task

_OVER = object()  # what `next` returns for a generator that has ended


class RunningCase:
    """One case of a task in this process. `advance` runs it up to the next yield of `run_submission`, or to its end.

    events: the communication events of the case, each as a dict. Here nothing is sent.
    """

    def __init__(
        self, task: Task, submitted: Callable[..., Any], inputs: Mapping[str, Any], context: RankContext, seed: int
    ):
        # A learner's class is passed on as it is, since `run_submission` may need its attributes and observes its calls
        # itself.
        self.observed = submitted if isinstance(submitted, type) else ObservedFunction(submitted, task)
        self.context, self.seed = context, seed
        self.steps = self._steps(task, inputs)
        self.events: list[dict] = []
        self.outputs: Any = None

    def advance(self) -> bool:
        """Run the next step. Returns whether there is more; exceptions pass through."""
        return next(self.steps, _OVER) is not _OVER

    def seed_generators(self) -> None:
        """Seed the random numbers that the learner's function may draw."""
        random.seed(self.seed)

    def _steps(self, task: Task, inputs: Mapping[str, Any]) -> Iterator[None]:
        """Runs `run_submission`, and stops at each of its yields. One without a yield is a single step."""
        self.seed_generators()
        result = task.run_submission(self.observed, inputs, self.context)
        is_generator = inspect.isgeneratorfunction(task.run_submission)
        self.outputs = (yield from result) if is_generator else result

    @property
    def calls(self) -> list[dict[str, Any]]:
        """What ObservedFunction noted of each call; nothing for a class, whose calls are not observed."""
        return self.observed.calls if isinstance(self.observed, ObservedFunction) else []


def run_alternating(cases: Sequence[RunningCase]) -> None:
    """Run the first two cases in turns, step by step, then each of the others; without a yield a case has one step.

    So an answer that keeps something from one call for the next, in a global variable for example, mixes the two up.
    """
    # The first two cases form one group, and each of the others is a group of its own.
    for together in (cases[:2], *([case] for case in cases[2:])):
        running = list(together)
        while running:
            running = [case for case in running if case.advance()]


def case_seed(seed: int, number: int) -> int:
    """The seed of rank 0's random numbers in the case of this number, so that a case repeats also if it runs alone."""
    return seed + 1000 * number
