"""08.cost: bytes that a rank holds of the model's states, and bytes that it sends in a step, by stage.

Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models": mixed precision with
Adam, 2 + 2 + 12 bytes a parameter; messages as rings, where each rank sends (N - 1) / N of what is reduced or gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from helpers.grading.kit import making
from helpers.grading.kit.answers import Answer, act, judge_several_answers
from helpers.grading.task import Finding, Task, World
from helpers.grading.zero import LAB
from helpers.learner.words import Words

HELD = Words(en="the bytes that a rank holds", zh="一个 rank 持有的字节数")
SENT = Words(en="the bytes that a rank sends", zh="一个 rank 发送的字节数")
BOTH = Words(en="the bytes held and the bytes sent", zh="持有的字节数和发送的字节数")
STAGES = range(4)
PARTS = (2, 2, 12)  # bytes a parameter: bf16 weights, bf16 gradients, fp32 master with Adam's two moments


def make(rng: torch.Generator, world_size: int) -> list[dict[str, Any]]:
    """Each stage with one micro-batch and with several; the ranks divide the parameters."""
    cases = []
    for stage in STAGES:
        for num_microbatches in (1, making.integer(rng, 3, 7)):
            num_ranks = making.integer(rng, 5, 40)
            cases.append([num_ranks * making.integer(rng, 10**6, 10**8), num_ranks, stage, num_microbatches])
    for stage in STAGES:
        cases.append([making.integer(rng, 10**6, 10**8), 1, stage, 2])
    return [{"cases": cases}]


def held(num_parameters: int, world_size: int, stage: int, m: int = 1, parts: tuple[int, ...] = PARTS) -> float:
    """Weights are cut from stage 3 on, gradients from 2, what the optimizer keeps from 1."""
    first_cut = (3, 2, 1)
    each = (size / (world_size if stage >= cut else 1) for size, cut in zip(parts, first_cut, strict=True))
    return num_parameters * sum(each)


def messages(stage: int, m: int) -> int:
    """Reduce-scatters and all-gathers of all parameters in a step; an all-reduce counts as one of each."""
    return (2, 2, m + 1, 3 * m)[stage]


def sent(
    num_parameters: int, world_size: int, stage: int, m: int, count: Callable[[int, int], int] = messages
) -> float:
    """A ring: each rank sends (N - 1) / N of the 2-byte numbers for each message."""
    return count(stage, m) * 2 * num_parameters * (world_size - 1) / world_size


def counting(count: Callable[[int, int], int]) -> Answer:
    return lambda *case: sent(*case, count)


def with_parts(*parts: int) -> Answer:
    return lambda n, ranks, stage, m: held(n, ranks, stage, m, parts)


WRONG_HELD: dict[str, list[Answer]] = {
    "one_stage_off": [
        lambda n, ranks, stage, m: held(n, ranks, stage - 1),
        lambda n, ranks, stage, m: held(n, ranks, stage + 1),
    ],
    "stage_alone": [
        lambda n, ranks, stage, m: n * (16 - (0, 12, 2, 2)[stage] * (1 - 1 / ranks)),
    ],
    "master_forgotten": [with_parts(2, 2, 8)],
    "all_in_fp32": [with_parts(4, 4, 8), with_parts(4, 4, 12)],
    "everything_cut": [lambda n, ranks, stage, m: 16 * n / ranks],
}
WRONG_SENT: dict[str, list[Answer]] = {
    "ring_share_forgotten": [
        lambda n, ranks, stage, m: messages(stage, m) * 2 * n,
        lambda n, ranks, stage, m: messages(stage, m) * 2 * n * (ranks - 1),
    ],
    "numbers_for_bytes": [lambda *case: sent(*case) / 2],
    "micro_batches_forgotten": [counting(lambda stage, m: messages(stage, 1))],
    "sent_every_micro_batch": [counting(lambda stage, m: m * messages(stage, 1))],
    "not_gathered_for_backward": [counting(lambda stage, m: 2 * m if stage == 3 else messages(stage, m))],
    "gathered_once_a_step": [counting(lambda stage, m: m + 2 if stage == 3 else messages(stage, m))],
    "gather_not_counted": [counting(lambda stage, m: (2, 1, m, 3 * m)[stage])],
}


def judge(world: World) -> Iterator[Finding]:
    columns = (HELD, held, WRONG_HELD), (SENT, sent, WRONG_SENT)
    yield from judge_several_answers(COST, BOTH, columns, world)


COST = Task(
    key="08.cost",
    signature="cost(num_parameters, world_size, stage, num_microbatches)",
    make=make,
    act=act,
    judge=judge,
    hints=LAB.hints(*WRONG_HELD, *WRONG_SENT),
    world_sizes=(1,),
    unit="device",
)
