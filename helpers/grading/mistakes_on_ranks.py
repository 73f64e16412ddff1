"""Runs the known mistakes of a task on ranks, to find out which one leaves what a learner's answer left there.

named_mistakes.py says what a trial is, and compares what comes back.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from helpers.devices import FillUninitialized
from helpers.grading.named_mistakes import Common, Left, RunTrial, Trial, common_text, definitions, in_common
from helpers.grading.registry import task_of
from helpers.grading.run_on_ranks import CaseOnRank
from helpers.grading.running_case import case_seed
from helpers.grading.task import RankContext, Task
from helpers.ranks import RankError, Ranks
from helpers.ranks.processes.limits import load_per_core

SECONDS = 3.0  # that all mistakes may take in one world, on an idle machine


def trial_on(ranks: Callable[[], Ranks]) -> RunTrial:
    """A function that runs a trial on as many of these ranks as its inputs are for. ranks: gives a pool of ranks."""

    def run_trial(trial: Trial) -> list[str]:
        world = ranks()[: len(trial.inputs[0])]
        before, world.timeout = world.timeout, SECONDS * load_per_core()
        try:
            return world.run(_run_on_rank, trial)[0]
        except RankError:  # a mistake that hangs or kills a rank here
            return []
        finally:
            world.timeout = before

    return run_trial


# -- on a rank -------------------------------------------------------------------------------------------------------
def _run_on_rank(trial: Trial) -> list[str]:
    """For each text, what it has in common with `left` on all ranks, as a RunTrial says it."""
    task, rank, same = task_of(trial.key), dist.get_rank(), []
    for submitted in definitions(trial):
        common = torch.tensor([1.0, 1.0])  # whether the outputs are the same, and whether the messages are
        for number, of_ranks, left_on_ranks in zip(trial.numbers, trial.inputs, trial.left, strict=True):
            own = _in_common(task, submitted, number, of_ranks[rank], left_on_ranks[rank], trial.seed)
            common *= torch.tensor(own, dtype=common.dtype)
            dist.all_reduce(common, op=dist.ReduceOp.MIN)
            if not common[0]:
                break  # most texts end here, after one case
        same.append(common_text(*map(bool, common)))
    return same


def _in_common(task: Task, submitted: Any, number: int, inputs: dict, left: Left, seed: int) -> Common:
    """Whether this function or class leaves the same outputs, and whether it leaves the same messages.

    It gets copies of the inputs, since the next one must not find what this one changed.
    """
    context = RankContext(dist.get_rank(), dist.get_world_size())
    with FillUninitialized():
        seed_of_rank = case_seed(seed, number) + context.rank
        return in_common(CaseOnRank(task, submitted, copy.deepcopy(inputs), context, seed_of_rank), left)
