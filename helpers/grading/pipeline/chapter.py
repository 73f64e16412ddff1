"""06.under_way, which the chapter alone asks: how many micro-batches hide the round trip of one."""

from __future__ import annotations

import math
from typing import Any

from helpers.grading.cases import CaseGenerator
from helpers.grading.kit.answers import Answer, question_task
from helpers.grading.pipeline import LAB
from helpers.learner.words import Words


def make_inputs(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """(p, forward, backward, message): the chapter's link, free messages, one rank, and some that need rounding up."""
    cases = [[4, 10, 20, 10], [rng.integer(3, 6), rng.integer(4, 9), rng.integer(10, 19), 0], [1, 10, 20, 10]]
    while len(cases) < 9:
        case = [rng.integer(2, 8), rng.integer(5, 12), rng.integer(11, 24), rng.integer(6, 40)]
        if not exactly(*case).is_integer():  # so no way to add it up is a rounding error away from another answer
            cases.append(case)
    return [{"cases": cases}]


def exactly(p: int, forward: float, backward: float, message: float, *, cuts: int | None = None) -> float:
    """The round trip over rank 0's own work for one. cuts: messages of one micro-batch, there and back 2(p - 1)."""
    cuts = 2 * (p - 1) if cuts is None else cuts
    return p + cuts * message / (forward + backward)


def under_way(*case: Any) -> int:
    return math.ceil(exactly(*case))


MISTAKES: dict[str, list[Answer]] = {
    "messages_left_out": [lambda p, *_: p],
    "there_and_not_back": [lambda p, *case: math.ceil(exactly(p, *case, cuts=p - 1))],
    "a_message_too_many": [lambda p, *case: math.ceil(exactly(p, *case, cuts=2 * p))],
    "not_rounded_up": [exactly, lambda *case: int(exactly(*case)), lambda *case: round(exactly(*case))],
}
UNDER_WAY = question_task(
    "06.under_way",
    "under_way(num_stages, forward, backward, message)",
    Words(en="the number of micro-batches", zh="微批次的个数"),
    under_way,
    MISTAKES,
    make_inputs=make_inputs,
    hints=LAB.hints(*MISTAKES),
)
