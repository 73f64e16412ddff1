"""Judges the tasks of lab 06 about orders of actions, 06.gpipe and 06.one_f_one_b, and provides schedules as lists.

Each task asks the learner's function several questions in one process. A question is called a case: it is the list of
the function's arguments, and `make_…` draws the cases. The answers are compared with the course's own schedules.

p is the number of stages, one per rank, and m the number of micro-batches. An action is a text as PyTorch prints it:
"2F0" is the forward of stage 2 on micro-batch 0, "2B0" its backward. In 1F1B a rank first runs some forwards, its
warm-up. Then it alternates backwards and forwards, and at the end it runs the remaining backwards.

Below the sentence about a wrong answer stands a rule, which says how the right one comes about. `words["…"]` is a
sentence of messages.yaml, or the name of a value in one. `rng` is a torch.Generator with methods that draw;
`rng.integer(3, 5)` is 3, 4 or 5.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import torch

from helpers import schedules
from helpers.grading.cases import CaseGenerator
from helpers.grading.kit.answers import question_task
from helpers.grading.pipeline import LAB
from helpers.learner.words import Words
from helpers.schedules import Action
from helpers.schedules.actions import FinishedAction
from helpers.schedules.validate import finished_by, needs

words = LAB.messages

Actions = list[str]  # what one rank does, in order


# -- 06.gpipe and 06.one_f_one_b -------------------------------------------------------------------------------------
def make_orders(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws cases (rank, p, m) for both tasks.

    Two pipelines are asked for each of their ranks; the second one has fewer micro-batches than stages. Then come a
    pipeline with as many micro-batches as stages, one with a single micro-batch, two with a single stage, and two in
    which ranks and micro-batches have numbers with two digits. The result has one item, since there is one process.
    """
    p = rng.integer(3, 5)
    m = p + rng.integer(2, 4)
    deep, few = rng.integer(5, 6), rng.integer(2, 3)  # stages and micro-batches of the second pipeline
    cases = [[rank, p, m] for rank in range(p)] + [[rank, deep, few] for rank in range(deep)]
    cases += [[rng.integer(0, p - 1), p, p], [rng.integer(0, p - 1), p, 1], [0, 1, rng.integer(3, 5)], [0, 1, 1]]
    return [{"cases": [*cases, [rng.integer(10, 11), 12, rng.integer(14, 16)], [0, 12, rng.integer(14, 16)]]}]


def gpipe(rank: int, p: int, m: int) -> Actions:
    """What this rank does in GPipe."""
    return list(map(str, schedules.gpipe(p, m).actions[rank]))


def one_f_one_b(rank: int, p: int, m: int) -> Actions:
    """What this rank does in 1F1B."""
    return list(map(str, schedules.one_f_one_b(p, m).actions[rank]))


def gpipe_rule(case: list[int], _: Any) -> Words:
    """What GPipe has this rank do."""
    rank, _, m = case
    return words["gpipe_rule"].format(rank=rank, m=m, last=m - 1)


def one_f_one_b_rule(case: list[int], _: Any) -> Words:
    """What 1F1B has this rank do."""
    rank, p, m = case
    return words["one_f_one_b_rule"].format(rank=rank, stages=p - rank, m=m, warm_up=min(p - rank, m), last=m - 1)


GPIPE = question_task(
    "06.gpipe",
    "gpipe(rank, num_stages, num_microbatches)",
    words["action_list"],
    gpipe,
    make_inputs=make_orders,
    rules=[gpipe_rule],
)
ONE_F_ONE_B = question_task(
    "06.one_f_one_b",
    "one_f_one_b(rank, num_stages, num_microbatches)",
    words["action_list"],
    one_f_one_b,
    make_inputs=make_orders,
    rules=[one_f_one_b_rule],
)


# -- schedules as lists ----------------------------------------------------------------------------------------------
def action_lists(schedule: schedules.Schedule) -> list[Actions]:
    """The actions of each rank as texts."""
    return [list(map(str, row)) for row in schedule.actions]


def draw_schedule(rng: CaseGenerator, p: int, m: int, *, has_same_order: bool = True) -> list[Actions]:
    """Any schedule that can run.

    has_same_order: all ranks take the micro-batches forward in one random order, and back in another. Otherwise each
    rank takes them in an order of its own.
    """
    orders = {kind: torch.randperm(m, generator=rng).tolist() for kind in "FB"}
    schedule: list[Actions] = [[] for _ in range(p)]
    done: set[FinishedAction] = set()
    while any(len(row) < 2 * m for row in schedule):
        candidates: list[Action] = []
        for rank, (kind, order) in product(range(p), orders.items()):
            remaining = [Action(rank, kind, j) for j in order if f"{rank}{kind}{j}" not in schedule[rank]]
            candidates += remaining[:1] if has_same_order else remaining
        action = rng.one_of(*(one for one in candidates if done.issuperset(needs(one, p))))
        done.update(finished_by(action))
        schedule[action.stage].append(str(action))
    return schedule
