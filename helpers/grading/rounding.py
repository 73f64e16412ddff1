"""Tells a tensor that differs from the right one by rounding alone from a wrong one.

A *nudge* is the seed of a random move of all inputs by about one rounding step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from helpers.grading.task import Judgement

NUDGES = (1, 2, 3, 4)  # the seeds of four moves by rounding steps
NOISE_FACTOR = 8  # a right answer differs by less than this times what the nudges move, in whatever order it adds
# Only a small difference can be rounding: below this share of the largest value, or this many rounding steps of
# the dtype.
NEAR_SHARE, NEAR_STEPS = 0.05, 1000


@dataclass(frozen=True)
class ComparedTensors:
    """Two tensors that were compared; `got` comes from a learner and may be anything."""

    expected: Tensor
    got: Any

    @property
    def is_comparable(self) -> bool:
        """Whether both are tensors of the same shape and dtype, and not empty."""
        a, b = self.expected, self.got
        return isinstance(b, Tensor) and a.shape == b.shape and a.dtype == b.dtype and a.numel() > 0

    def max_difference(self) -> float:
        """The largest absolute difference of two elements; NaN where one of the tensors holds NaN."""
        return float((self.got.detach() - self.expected.detach()).double().abs().max())


def forgive_rounding(
    judgements: Sequence[Judgement], judge_nudged: Callable[[int], Sequence[Judgement]]
) -> list[Judgement]:
    """The judgements, with those that failed by rounding alone turned into passes.

    A right answer may add in another order than the reference, or round elsewhere. Where terms cancel, the sum is small
    compared with the terms, and its last digits are noise that no tolerance relative to the sum allows for. So a small
    difference is compared with the noise of the computation itself: the inputs are moved by a rounding step of their
    dtype (`CaseGenerator.nudge`), the judge computes what it expects once more, and what moves is noise.
    judge_nudged: judges the same outputs again, with the inputs moved by this nudge.
    """
    if not any(map(is_near_miss, judgements)):
        return list(judgements)
    nudged = [judge_nudged(nudge) for nudge in NUDGES]  # for each nudge the judgements of the same comparisons
    counterparts = [[_counterpart(one, index, others) for others in nudged] for index, one in enumerate(judgements)]
    return list(map(_forgiven, judgements, counterparts))


def is_near_miss(judgement: Judgement) -> bool:
    """Whether a judgement failed by so little that it may be rounding."""
    compared = judgement.compared
    if judgement.ok or compared is None or not compared.is_comparable or not compared.expected.is_floating_point():
        return False
    near = max(NEAR_SHARE, NEAR_STEPS * torch.finfo(compared.expected.dtype).eps)
    return bool(compared.max_difference() <= near * compared.expected.double().abs().max())


def _counterpart(judgement: Judgement, index: int, others: Sequence[Judgement]) -> Judgement | None:
    """The same comparison among other judgements; None if the judge compared something else there."""
    other = others[index] if index < len(others) else None
    is_same = other is not None and other.compared is not None and other.rank == judgement.rank
    return other if is_same else None


def _forgiven(judgement: Judgement, counterparts: Sequence[Judgement | None]) -> Judgement:
    """The judgement, passed if its tensors differ by no more than what the nudges move, times NOISE_FACTOR.

    counterparts: the same comparison with each nudge; None where the judge compared something else.
    """
    if not is_near_miss(judgement):
        return judgement
    expected = judgement.compared.expected
    moves = [ComparedTensors(expected, other.compared.expected) for other in counterparts if other is not None]
    noise = max((move.max_difference() for move in moves if move.is_comparable), default=0.0)
    is_noise = judgement.compared.max_difference() <= NOISE_FACTOR * noise
    return replace(judgement, ok=True, mistakes=()) if is_noise else judgement
