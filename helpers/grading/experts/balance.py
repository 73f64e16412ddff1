"""Judges 14.bias: how the bias of each expert moves after a step, so that the experts get equally many tokens.

The learner's function is called in one process with drawn counts. A case is the list of arguments of one call. Below
the sentence about a wrong value, `bias_rule` says how the right one comes about, with the numbers of the case. `Words`
is a text in English and Chinese. Nothing here needs torch, so a page of the web edition judges the task.
"""

from __future__ import annotations

from typing import Any

from helpers.grading.experts import LAB
from helpers.grading.kit.answers import first_difference, question_task
from helpers.grading.task import NumberGenerator
from helpers.learner.words import Words

words = LAB.messages  # the texts of messages.yaml


FIXED_CASES = [
    [[0.0, 0.02, -0.01, 0.0], [[5, 1, 0, 2], [1, 3, 2, 2]], 0.001],  # the text's example
    [[0.1, -0.3, 0.2], [[4, 1, 2]], 0.01],  # one rank
    [[0.2, -0.1], [[3, 1], [0, 2]], 0.05],  # both experts have the mean
    [[0.0, 0.0, 0.0, 0.0], [[0, 6, 0, 0], [0, 7, 0, 0]], 0.001],  # one expert has all tokens
    [[0.3], [[4], [2]], 0.01],  # there is one expert
    [[1.01234, -2.5, 1 / 3], [[2, 1, 1], [0, 1, 3]], 0.0005],  # two experts are 2/3 below the mean
    [[0.01234, -0.5, 0.0005], [[1, 2, 2], [0, 1, 1]], 0.0005],  # two experts are 2/3 above the mean
    [[0.1, 0.3], [[2, 0], [0, 3]], 0.002],  # both are 1/2 away from it
    [[0.0, 0.1, 0.2], [[60000, 50000, 49999], [40000, 50000, 50000]], 0.01],  # all are within 1 of a large mean
    [[0.1, 0.2], [[30, 10], [0, 5]], 0.3],  # the mean of the ranks' shares says the opposite
    [[0.1, -0.2, 0.3], [[1, 0, 0], [1, 2, 1], [0, 0, 1]], 0.02],  # all have the mean, 2, but 1/3 + 4/3 + 1/3 is not 2
]


def make_bias(rng: NumberGenerator, world_size: int) -> list[dict[str, Any]]:
    """The fixed cases, and then random counts of several ranks.

    A case is: the bias of each expert, the counts as [rank][expert], and the rate. In the random cases some expert has
    exactly the mean, or the mean rounded down, or the mean rounded up, in turn.
    """
    cases: list[list[Any]] = list(FIXED_CASES)
    for number in range(9):
        mean, near, far = rng.integer(6, 12), rng.integer(2, 3), rng.integer(4, 6)
        totals = [mean, mean + near, mean - near, mean + far, mean - far][: rng.one_of(3, 5)]
        totals[1] += (0, 1, -1)[number % 3]
        totals = [totals[i] for i in rng.permutation(len(totals))]
        bias = [rng.integer(-5000, 5000) / 10000 for _ in totals]
        cases.append([bias, split_among_ranks(rng, totals), rng.one_of(0.0005, 0.001, 0.03, 0.1)])
    return [{"cases": cases}]


def split_among_ranks(rng: NumberGenerator, totals: list[int]) -> list[list[int]]:
    """Counts of two to four ranks, as [rank][expert], that add up to these totals."""
    counts = [[0] * len(totals) for _ in range(rng.integer(2, 4))]
    for expert, total in enumerate(totals):
        for _ in range(total):
            rng.one_of(*counts)[expert] += 1
    return counts


def moved_bias(bias: list[float], counts: list[list[int]], rate: float) -> list[float]:
    """The right answer to a case."""
    totals = [sum(of_ranks) for of_ranks in zip(*counts, strict=True)]
    mean = sum(totals) / len(totals)
    return [value + rate * ((total < mean) - (total > mean)) for value, total in zip(bias, totals, strict=True)]


def bias_rule(case: list[Any], got: Any) -> Words:
    """The count over all ranks of the first expert whose bias is wrong, and the mean over the experts.

    The list's numbers are counted from 1, as they are in the sentence about the wrong value.
    """
    _, counts, _ = case
    totals = [sum(of_ranks) for of_ranks in zip(*counts, strict=True)]
    expert = first_difference(moved_bias(*case), got)
    return words["bias_rule"].format(expert + 1, totals[expert], sum(totals) / len(totals))


BIAS = question_task(
    "14.bias",
    "update_bias(bias, counts, rate)",
    words["bias"],
    moved_bias,
    make_inputs=make_bias,
    rules=[bias_rule],
    must_not_change=("bias", "counts"),
    needs_torch=False,
)
