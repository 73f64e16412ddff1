"""Judges 08.cost: the bytes of model states that a rank holds, and the bytes that it sends in a step, for each stage.

From Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models": mixed precision
with Adam takes 2 + 2 + 12 bytes per parameter, and in a ring each of N ranks sends (N - 1) / N of what is reduced or
gathered. A stage says what the ranks share out: stage 0 nothing, 1 the optimizer states, 2 the gradients as well, and 3
also the weights.

How to read it. A case is the list of arguments of one call of the learner's function; `make_inputs` draws the cases
with `rng`, of which `rng.integer(3, 5)` is 3, 4 or 5. `question_task` makes the Task, which calls the learner's
function with each case, and compares the two values that it returns with those of `cost`. `words[…]` is a text of
messages.yaml in English and Chinese.
"""

from __future__ import annotations

from typing import Any

from helpers.grading.kit.answers import Rule, question_task
from helpers.grading.task import NumberGenerator
from helpers.grading.zero import LAB

words = LAB.messages

STAGES = range(4)  # of ZeRO; 0 is plain data parallelism
STATE_BYTES = (2, 2, 12)  # per parameter: bf16 weight, bf16 gradient, fp32 master weight with Adam's two moments
FIRST_SHARDED = (3, 2, 1)  # the first stage in which each of them is sharded


def make_inputs(rng: NumberGenerator, world_size: int) -> list[dict[str, Any]]:
    """Each stage with one micro-batch and with several, then each stage with one rank.

    The ranks divide the parameters, so that rounding does not matter.
    """
    cases = []
    for stage in STAGES:
        for num_microbatches in (1, rng.integer(3, 7)):
            num_ranks = rng.integer(5, 40)
            cases.append([num_ranks * rng.integer(10**6, 10**8), num_ranks, stage, num_microbatches])
    for stage in STAGES:
        cases.append([rng.integer(10**6, 10**8), 1, stage, 2])
    return [{"cases": cases}]


def bytes_held(num_parameters: int, world_size: int, stage: int) -> float:
    """Weights are sharded from stage 3 on, gradients from stage 2, and optimizer states from stage 1."""
    pairs = zip(STATE_BYTES, FIRST_SHARDED, strict=True)
    return num_parameters * sum(size / (world_size if stage >= first else 1) for size, first in pairs)


def bytes_sent(num_parameters: int, world_size: int, stage: int, m: int) -> float:
    """In each message of a ring a rank sends (N - 1) / N of the parameters, 2 bytes each.

    The messages of a step of m micro-batches are reduce-scatters and all-gathers; an all-reduce is one of each. Stages
    0 and 1: once per step. Stage 2: a reduce-scatter per micro-batch and an all-gather. Stage 3: per micro-batch two
    all-gathers, for forward and backward, and a reduce-scatter.
    """
    num_messages = (2, 2, m + 1, 3 * m)[stage]
    return num_messages * 2 * num_parameters * (world_size - 1) / world_size


def cost(num_parameters: int, world_size: int, stage: int, num_microbatches: int) -> tuple[float, float]:
    """The bytes held and the bytes sent."""
    sent = bytes_sent(num_parameters, world_size, stage, num_microbatches)
    return bytes_held(num_parameters, world_size, stage), sent


def rule_about(value: str) -> Rule:
    """What decides about the value "held" or "sent" in the stage of a case."""
    return lambda case, answer: words[f"rule_{value}.{case[2]}"].format(case[1], case[3])


COST = question_task(
    "08.cost",
    "cost(num_parameters, world_size, stage, num_microbatches)",
    (words["bytes_held"], words["bytes_sent"]),
    cost,
    make_inputs=make_inputs,
    rules=(rule_about("held"), rule_about("sent")),
    needs_torch=False,
)
