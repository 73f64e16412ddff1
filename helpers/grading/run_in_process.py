"""Runs a learner's function in this process and brings back what happened, for a task that needs no ranks and no torch.

InProcessRunner is a runner for `grade`. It serves where there are no processes, as on a page of the web edition. No
safeguard holds there and no limit of time, so whoever calls it must be able to end this process.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from helpers.grading.failures import cut_print, run_failure, why_not_callable
from helpers.grading.named_mistakes import Trial, run_trial_here
from helpers.grading.plain_data import as_plain_data
from helpers.grading.running_case import RunningCase, case_seed, run_alternating
from helpers.grading.task import RankContext, RunFailure, Task, TaskRun
from helpers.learner.words import Words
from helpers.ranks.board.errors import describe_raised, frames_of_error
from helpers.ranks.board.sites import rank_names
from helpers.ranks.board.sites import words as rank_words


class InProcessRunner:
    """Runs `submitted` in this process: `runner(inputs, seed)` returns a TaskRun. Raises nothing but KeyboardInterrupt.

    Raises ValueError for a task that needs torch or ranks. A call takes the inputs as [rank][case], for one rank.
    """

    def __init__(self, task: Task, submitted: Callable[..., Any]):
        if task.needs_torch:
            raise ValueError(f"{task.key} needs torch, so it runs on ranks; give it a LocalRunner")
        self.task, self.submitted = task, submitted

    def __call__(self, inputs: Sequence[Sequence[dict]], seed: int) -> TaskRun:
        failure = why_not_callable(self.task, self.submitted)
        if failure is not None:
            return TaskRun(failure=asdict(failure))
        cases = [
            RunningCase(self.task, self.submitted, one, RankContext(0, 1), case_seed(seed, number))
            for number, one in enumerate(inputs[0])
        ]
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                run_alternating(cases)
        except (Exception, SystemExit) as error:
            return TaskRun(failure=asdict(failure_here(error)), printed=cut_print(printed.getvalue()))
        rows = [(as_plain_data(case.outputs), case.events, case.context.marks, case.calls) for case in cases]
        outputs, events, marks, calls = ([list(column)] for column in zip(*rows, strict=True))  # as [rank][case]
        return TaskRun(outputs=outputs, events=events, marks=marks, calls=calls, printed=cut_print(printed.getvalue()))

    def run_trial(self, trial: Trial) -> list[str]:
        """Runs the known mistakes beside the answer (see named_mistakes.py). What they print, nobody needs."""
        with contextlib.redirect_stdout(io.StringIO()):
            return run_trial_here(trial)


def failure_here(error: BaseException) -> RunFailure:
    """An exception of the learner's function as a RunFailure, with the text that it has if it comes from a rank."""
    message = getattr(error, "words", None) or Words.of(str(error))
    text, place = describe_raised(type(error).__name__, message, frames_of_error(error))
    return run_failure("exception", rank_words["raised"].format(ranks=rank_names([0]), text=text, place=place), 0)
