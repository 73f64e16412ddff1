"""Judges 08.cost: the bytes of model states that a rank holds, and the bytes that it sends in a step, for each stage.

From Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models": mixed precision
with Adam takes 2 + 2 + 12 bytes per parameter, and in a ring each of N ranks sends (N - 1) / N of what is reduced or
gathered. A stage says what the ranks share out: stage 0 nothing, 1 the optimizer states, 2 the gradients as well, and 3
also the weights. A mistake is named if its formula gives the learner's number in every case.

How to read it. A case is the list of arguments of one call of the learner's function; `make_…` draws the cases of a
task with `rng`, of which `rng.integer(3, 5)` is 3, 4 or 5. `run_questions` calls the learner's function with each case,
and `judge_several_answers` compares the answers with those of the right functions. A mistake is a wrong solution that
learners often write. Each table `WRONG_…` maps the key of its hint in hints.yaml to functions that contain the mistake.
`words[…]` is a text of messages.yaml in English and Chinese.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from helpers.grading.cases import CaseGenerator
from helpers.grading.kit.answers import Answer, judge_several_answers, run_questions
from helpers.grading.task import JudgedWorld, Judgement, Task
from helpers.grading.zero import LAB
from helpers.grading.zero.shards import explained

words = LAB.messages

STAGES = range(4)  # of ZeRO; 0 is plain data parallelism
STATE_BYTES = (2, 2, 12)  # per parameter: bf16 weight, bf16 gradient, fp32 master weight with Adam's two moments


def make_inputs(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
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


# In the functions below m is the number of micro-batches in a step.
def bytes_held(
    num_parameters: int, world_size: int, stage: int, m: int = 1, state_bytes: tuple[int, ...] = STATE_BYTES
) -> float:
    """Weights are sharded from stage 3 on, gradients from stage 2, and optimizer states from stage 1.

    m does not matter here; every function takes all four arguments of a case.
    """
    first_sharded = (3, 2, 1)
    pairs = zip(state_bytes, first_sharded, strict=True)
    return num_parameters * sum(size / (world_size if stage >= first else 1) for size, first in pairs)


def count_messages(stage: int, m: int) -> int:
    """Reduce-scatters and all-gathers of all parameters in a step; an all-reduce counts as one of each.

    Stages 0 and 1: once per step. Stage 2: a reduce-scatter per micro-batch and an all-gather. Stage 3: per
    micro-batch two all-gathers, for forward and backward, and a reduce-scatter.
    """
    return (2, 2, m + 1, 3 * m)[stage]


def bytes_sent(
    num_parameters: int, world_size: int, stage: int, m: int, count: Callable[[int, int], int] = count_messages
) -> float:
    """In each message of a ring a rank sends (N - 1) / N of the parameters, 2 bytes each."""
    return count(stage, m) * 2 * num_parameters * (world_size - 1) / world_size


def sent_with(count: Callable[[int, int], int]) -> Answer:
    """The bytes sent, if `count` counts the messages."""
    return lambda *case: bytes_sent(*case, count)


def held_with(*state_bytes: int) -> Answer:
    """The bytes held, if weights, gradients and optimizer states take these bytes per parameter."""
    return lambda n, ranks, stage, m: bytes_held(n, ranks, stage, m, state_bytes)


# A table of mistakes maps the key of a hint to wrong formulas. In these lambdas n is the number of parameters.
WRONG_HELD: dict[str, list[Answer]] = {
    "one_stage_off": [
        lambda n, ranks, stage, m: bytes_held(n, ranks, stage - 1),
        lambda n, ranks, stage, m: bytes_held(n, ranks, stage + 1),
    ],
    # Each stage shards only what it adds: nothing, 12 bytes of optimizer states, 2 of gradients, 2 of weights.
    "stage_alone": [lambda n, ranks, stage, m: n * (16 - (0, 12, 2, 2)[stage] * (1 - 1 / ranks))],
    "master_forgotten": [held_with(2, 2, 8)],  # 8: Adam's two moments alone
    "all_in_fp32": [held_with(*sizes) for sizes in ((4, 4, 8), (4, 4, 12), (2, 4, 12), (4, 2, 12))],
    "everything_cut": [lambda n, ranks, stage, m: 16 * n / ranks],  # all 16 bytes are sharded in every stage
    "nothing_cut": [lambda n, ranks, stage, m: 16 * n],
    "values_swapped": [lambda *case: bytes_sent(*case)],
}
WRONG_SENT: dict[str, list[Answer]] = {
    "ring_share_forgotten": [
        lambda n, ranks, stage, m: count_messages(stage, m) * 2 * n,
        lambda n, ranks, stage, m: count_messages(stage, m) * 2 * n * (ranks - 1),
    ],
    "numbers_for_bytes": [lambda *case: bytes_sent(*case) / 2],
    "micro_batches_forgotten": [
        sent_with(lambda stage, m: count_messages(stage, 1)),
        sent_with(lambda stage, m: count_messages(stage, 1 if stage == 3 else m)),
    ],
    "sent_every_micro_batch": [
        sent_with(lambda stage, m: m * count_messages(stage, 1)),
        sent_with(lambda stage, m: (2, 2, 2 * m, 3 * m)[stage]),  # in stage 2 alone
        sent_with(lambda stage, m: (2 * m, 2 * m, m + 1, 3 * m)[stage]),  # in stages 0 and 1
    ],
    "not_gathered_for_backward": [sent_with(lambda stage, m: 2 * m if stage == 3 else count_messages(stage, m))],
    "gathered_once_a_step": [sent_with(lambda stage, m: m + 2 if stage == 3 else count_messages(stage, m))],
    # All-gathers are left out in stages 1 and 2; stage 3 is right.
    "gather_not_counted": [sent_with(lambda stage, m: (2, 1, m, 3 * m)[stage])],
    "all_reduce_counted_once": [
        sent_with(lambda stage, m: (1, 2, m + 1, 3 * m)[stage]),
        sent_with(lambda stage, m: (1, 1, m, 3 * m)[stage]),
    ],
    "all_reduced_and_gathered": [
        sent_with(lambda stage, m: (2, 3, m + 1, 3 * m)[stage]),
        sent_with(lambda stage, m: (2, 3, 2 * m + 1, 3 * m)[stage]),
    ],
    "gathered_at_the_end": [sent_with(lambda stage, m: 3 * m + 1 if stage == 3 else count_messages(stage, m))],
    "values_swapped": [bytes_held],
    # Weights are gathered with 4 bytes per parameter in stages 1 and 2, or everything is sent with 4.
    "sent_in_fp32": [
        sent_with(lambda stage, m: (2, 3, m + 2, 3 * m)[stage]),
        sent_with(lambda stage, m: 2 * count_messages(stage, m)),
    ],
}


def judge(world: JudgedWorld) -> Iterator[Judgement]:
    """Judges the bytes held and the bytes sent apart, so that a mistake in one of them is named as well."""
    columns = (words["bytes_held"], bytes_held, WRONG_HELD), (words["bytes_sent"], bytes_sent, WRONG_SENT)
    findings = judge_several_answers(COST, words["bytes_held_and_sent"], columns, world)
    yield next(findings)  # whether there are two values
    # The findings of all cases about one value, then about the other.
    rules = ("held", words["bytes_per_parameter"]), ("sent", words["bytes_per_message"])
    questions = [(*rule, *case) for rule in rules for case in world.inputs[0]["cases"]]
    for finding, (what, rule, _, num_ranks, stage, m) in zip(findings, questions, strict=False):
        yield explained(explained(finding, words[f"rule_{what}.{stage}"].format(num_ranks, m)), rule)


COST = Task(
    key="08.cost",
    signature="cost(num_parameters, world_size, stage, num_microbatches)",
    make_inputs=make_inputs,
    run_submission=run_questions,
    judge=judge,
    runs_on="process",
)
