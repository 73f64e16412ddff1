"""Orders the timed plans of the planner: which of them its estimates cannot tell apart, and which of those is simplest.

Two plans of one model on the same GPUs share most of the error of their estimates, but not all of it, so a small
difference does not say which is faster. How small was measured (LAYOUT_TIE, VARIANT_TIE). Below that the planner takes
the simpler plan (`complexity`) instead of the one with the smaller number. `ranked` gives one plan per layout in that
order, which ranking.py explains.

A `PlanRequest` is the question (model, cluster, batch), and a `PlanEstimate` is a plan with its estimated memory and
step; both are in plans.py. A layout is what a plan chooses for tp, cp, pp, ZeRO and ep (`layout_key`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import log2

from helpers.predict.advice.plans import PlanEstimate, PlanRequest, StrategyName
from helpers.predict.advice.search import has_16_bit_sums, layout_key, variants_key
from helpers.specs import Plan

# Two plans whose steps differ by less than this share cannot be told apart. Measured pairs of plans of one model on the
# same GPUs that are estimated to differ by more are in the estimated order in over four of five cases, and those that
# are nearer only in the share RIGHT_WITHIN. LAYOUT_TIE is for plans with different axes, VARIANT_TIE for plans with the
# same axes that differ in their micro-batch. `python -m benchmarks.plan_pairs` measures them. Its plans differ in tp,
# pp, dp and micro-batch; no pair of measured plans says how well cp, ZeRO, chunks and recomputation compare. In its
# tasks on one node the simplest plan within LAYOUT_TIE loses less measured time than the one that is estimated fastest.
LAYOUT_TIE, VARIANT_TIE = 0.10, 0.03
RIGHT_WITHIN = 0.65  # of the pairs with different axes
SHOWN = 10  # how many of the best plans are shown
LONG = 16_384  # tokens of a sequence from which on context parallelism is usual
OBJECTION = 4  # points of complexity that a warning counts as


def complexity(plan: Plan, seq: int) -> float:
    """How much a plan demands of a training script and of the people who run it, in points; plain DDP has 0.

        ZeRO stages 1, 2 and 3             1, 1.2, 1.5   the same script with another wrapper or optimizer
        tensor parallelism, experts        2 each        other layers, and messages inside every layer
        a pipeline                         3             a schedule, stages, and several micro-batches
        context parallelism                4             another attention; 2 for sequences so long that it is usual
        doubling tp, cp, ep, pp or chunks  0.3           smaller pieces, and more ranks that wait for each other
        recomputation                      0.3           a wrapper around each block
        gradients added up in 16 bits      5             no work, but small gradients may be lost; over more than
                                                         `MOST_SUMS` micro-batches there is a warning, too

    The points are this course's judgement. seq: tokens of a sequence.
    """
    points = (2 if seq > LONG else 4) if plan.cp > 1 else 0
    points += 2 * (plan.tp > 1) + 2 * (plan.ep > 1) + 3 * (plan.pp > 1)  # a bool counts as 0 or 1
    points += 0.3 * log2(plan.tp * plan.cp * plan.ep * plan.pp * plan.num_chunks)
    points += (0, 1, 1.2, 1.5)[plan.zero]  # without ZeRO, and with its stages 1 to 3
    return points + 0.3 * (plan.recompute != "none") + 5 * has_16_bit_sums(plan)


def _complexity(request: PlanRequest, candidate: PlanEstimate) -> float:
    return complexity(candidate.plan, getattr(request.model, "seq", 1))  # a network for images has no sequences


def _preference(request: PlanRequest, candidate: PlanEstimate) -> tuple[float, float]:
    """The key by which the planner orders plans that it cannot tell apart: points first, then seconds.

    The points are those of `complexity` and `OBJECTION` for each warning. Offload counts as a warning, and weights in
    4 bits as a point.
    """
    objections = len(candidate.warnings) + (candidate.name == StrategyName.OFFLOAD)
    points = _complexity(request, candidate) + OBJECTION * objections
    return points + (candidate.name == StrategyName.QLORA), candidate.seconds


def _simplest(request: PlanRequest, candidates: Iterable[PlanEstimate], tie: float) -> PlanEstimate:
    """The simplest of the plans whose steps are longer than the fastest one's by at most the share `tie`."""
    candidates = [*candidates]
    limit = (1 + tie) * min(candidate.seconds for candidate in candidates)
    near = [candidate for candidate in candidates if candidate.seconds <= limit]
    return min(near, key=lambda candidate: _preference(request, candidate))


def ranked(request: PlanRequest, estimates: Sequence[PlanEstimate]) -> list[PlanEstimate]:
    """One plan per layout in the order of preference; the first is recommended.

    First come the plans whose steps cannot be told from the fastest one's (`is_tied`), the simplest first, and then the
    others by their seconds.
    """
    variants: dict[tuple, list[PlanEstimate]] = defaultdict(list)
    for candidate in estimates:
        variants[candidate.name, *variants_key(candidate.plan)].append(candidate)
    of_variants = [_simplest(request, candidates, VARIANT_TIE) for candidates in variants.values()]
    limit = (1 + LAYOUT_TIE) * min((candidate.seconds for candidate in estimates), default=0.0)
    tied = [replace(candidate, is_tied=True) for candidate in of_variants if candidate.seconds <= limit]
    others = [candidate for candidate in of_variants if candidate.seconds > limit]
    tied.sort(key=lambda candidate: _preference(request, candidate))
    others.sort(key=lambda candidate: candidate.seconds)
    of_layouts: dict[tuple, PlanEstimate] = {}
    for candidate in (*tied, *others):
        of_layouts.setdefault((candidate.name, *layout_key(candidate.plan)), candidate)
    return [*of_layouts.values()]


def can_tell_apart(one: PlanEstimate, other: PlanEstimate) -> bool:
    """Whether the steps of two plans differ enough to say which is faster."""
    tie = VARIANT_TIE if layout_key(one.plan) == layout_key(other.plan) else LAYOUT_TIE
    shorter, longer = sorted((one.seconds, other.seconds))
    return longer > (1 + tie) * shorter


def simplest_of(request: PlanRequest, estimates: Sequence[PlanEstimate]) -> PlanEstimate:
    """The plan with the least complexity, however slow it is; of equal ones the fastest."""
    return min(estimates, key=lambda candidate: (_complexity(request, candidate), candidate.seconds))
