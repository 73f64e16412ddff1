"""By how much a right answer may differ: it adds in another order than the reference, or rounds elsewhere.

Where terms cancel, a sum is small beside what was summed, and its last digits are noise that no tolerance relative to
the sum allows. So a difference that is near is held against the scale of the computation: what goes in is moved by a
rounding step of its dtype (`Draw.nudge`), the judge computes what it expects once more, and what moves is noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from helpers.grading.task import ComparedTensors, Judgement

NUDGES = (1, 2, 3, 4)
FACTOR = 8  # times what the nudges move: every order of adding stays below it
NEAR = 0.05  # of the largest value, or so many rounding steps: what is further away is no rounding
STEPS = 1000


def forgive_rounding(findings: Sequence[Judgement], again: Callable[[int], Sequence[Judgement]]) -> list[Judgement]:
    """The findings, where those that differ by rounding alone are ok. again: judges once more, with a nudge."""
    if not any(map(is_near_miss, findings)):
        return list(findings)
    moved = [again(nudge) for nudge in NUDGES]
    return [_forgiven(one, [_twin(one, place, other) for other in moved]) for place, one in enumerate(findings)]


def is_near_miss(finding: Judgement) -> bool:
    """Whether a finding failed by so little that it may be rounding."""
    pair = finding.pair
    if finding.ok or pair is None or not pair.is_alike or not pair.expected.dtype.is_floating_point:
        return False
    near = max(NEAR, STEPS * torch.finfo(pair.expected.dtype).eps)
    return bool(pair.gap() <= near * pair.expected.double().abs().max())


def _twin(finding: Judgement, place: int, others: Sequence[Judgement]) -> Judgement | None:
    """The same comparison among other findings: a judge that compared something else there has none."""
    other = others[place] if place < len(others) else None
    is_same = other is not None and other.pair is not None and other.rank == finding.rank
    return other if is_same else None


def _forgiven(finding: Judgement, twins: Sequence[Judgement | None]) -> Judgement:
    if not is_near_miss(finding):
        return finding
    pairs = [ComparedTensors(finding.pair.expected, twin.pair.expected) for twin in twins if twin is not None]
    noise = max((pair.gap() for pair in pairs if pair.is_alike), default=0.0)
    return replace(finding, ok=True, mistakes=()) if finding.pair.gap() <= FACTOR * noise else finding
