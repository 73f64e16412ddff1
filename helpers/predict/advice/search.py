"""Every plan for a model on a cluster: pruned by memory, then by a lower bound of its step; the others are timed.

The axes: tp (inside a node), cp, pp (a stage is whole nodes, or a part of one), dp takes what is left, ep; chunks,
micro-batch (powers of 2), ZeRO (2 and 3 without a pipeline, whose micro-batches would each gather anew), recomputation
(the least that fits, since more never helps), sequence parallelism wherever tp is above 1, and where many micro-batches
are added up the precision of gradients. Ranks are numbered as in Megatron-LM: tp, cp, dp, pp.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from math import gcd, inf

from helpers.predict.advice.fit import fullest
from helpers.predict.advice.work import Ranked, Work, say, strategy
from helpers.predict.memory.states import rank_states
from helpers.predict.time.flops import mfu
from helpers.predict.time.model import NOMINAL, UNCALIBRATED, StepTime, least_seconds, step_time
from helpers.records import MemoryBreakdown
from helpers.specs import Plan

LARGEST_MICRO_BATCH, LARGEST_CP, LEAST_TOKENS = 64, 64, 1024  # sequences; ranks; of a sequence on a rank
MOST_SUMS = 32  # micro-batches whose gradients may be added up in 16 bits
NEAR, CLOSE = 1.3, 1.06  # times the best of all, times a layout's best: beyond, a plan's bound says enough
Fitting = tuple[Plan, int, MemoryBreakdown]


def spreads(work: Work) -> Iterator[Plan]:
    """(tp, cp, pp, dp, ep) that the cluster's topology and the model's experts allow, whatever its widths."""
    cluster = work.cluster
    for tp in (size for size in range(1, cluster.gpus_per_node + 1) if cluster.gpus_per_node % size == 0):
        for cp in (2**n for n in range(LARGEST_CP.bit_length())):
            if cp > 1 and (work.model.seq < LEAST_TOKENS * cp or work.model.window) or cluster.world_size % (tp * cp):
                break
            left = cluster.world_size // (tp * cp)
            for pp in (size for size in range(1, min(left, work.model.num_layers) + 1) if left % size == 0):
                block = cluster.world_size // pp  # ranks of a stage: whole nodes, or a node's equal part
                if block % cluster.gpus_per_node == 0 or cluster.gpus_per_node % block == 0:
                    plan = Plan(
                        tp=tp, cp=cp, pp=pp, dp=left // pp, attention=work.attention, optimizer=work.optimizer,
                        sequence_parallel=tp > 1 and work.model.seq % tp == 0,
                    )  # fmt: skip
                    most = gcd(work.model.num_experts, plan.dp * cp)
                    yield from (replace(plan, ep=ep) for ep in range(1, most + 1) if most % ep == 0)


def refusal(work: Work, spread: Plan) -> str:
    """Why the model or the batch cannot be spread so, in words; empty where it can."""
    try:
        spread.check(work.model)
    except ValueError as error:
        part, whole = re.findall(r"(?:pp \* )?\w+=\d+", str(error))
        return say("cannot.divide_heads" if "one another" in str(error) else "cannot.divide", part=part, whole=whole)
    if work.global_batch % spread.dp:
        return say("cannot.batch", batch=work.global_batch, ranks=spread.dp)
    return ""


def sharded(work: Work) -> Iterator[Plan]:
    """Spreads that suit model and batch, with each ZeRO stage, whose model states alone may fit."""
    for spread in spreads(work):
        if refusal(work, spread):
            continue
        stages = (0, 1) if spread.pp > 1 else (0, 1, 2, 3)
        for zero in stages if spread.dp * spread.cp > 1 else (0,):
            plan = replace(spread, zero=zero)
            if _least_bytes(work, plan) <= work.usable:
                yield plan


def _least_bytes(work: Work, spread: Plan) -> int:
    """Model states alone, of the stage in the middle or the only one."""
    lightest = replace(spread, precision=work.precision or "mixed")
    return rank_states(work.model, lightest, spread.pp // 2).total


def batched(work: Work, spread: Plan) -> Iterator[list[list[Plan]]]:
    """For each micro-batch, smallest first: rows of plans, of which the first that fits is to be taken."""
    each = work.global_batch // spread.dp
    for size in (2**n for n in range(LARGEST_MICRO_BATCH.bit_length())):
        if each % size:
            break
        fed = replace(spread, micro_batch=size, num_microbatches=each // size)
        yield [
            [
                replace(fed, num_chunks=chunks, precision=precision, recompute=recompute)
                for precision in precisions
                for recompute in ("none", "selective", "full")
            ]
            for chunks in _chunks(work.model.num_layers, spread.pp, each // size)
            for precisions in _gradients(work, each // size)
        ]


def _gradients(work: Work, microbatches: int) -> tuple[tuple[str, ...], ...]:
    """Precisions to weigh against each other; behind the first of a row what is taken only where it does not fit."""
    if work.precision:
        return ((work.precision,),)
    if microbatches == 1:
        return (("mixed",),)
    both = "mixed_fp32_grads", "mixed"
    return (both,) if microbatches > MOST_SUMS else ((both[0],), (both[1],))


@lru_cache(maxsize=1024)
def _chunks(layers: int, pp: int, microbatches: int) -> tuple[int, ...]:
    """Chunks of a stage that come out even, whole layers each; one alone where micro-batches do not divide."""
    if pp == 1 or microbatches % pp:
        return (1,)
    most = (layers + 2) // pp
    return tuple(n for n in range(1, most + 1) if n == 1 or not layers % (pp * n) or not (layers + 2) % (pp * n))


def fitting(work: Work) -> tuple[list[Fitting], int]:
    """Of each row the first plan that fits, and how many plans were looked at.

    What is held grows with the micro-batch, so where none of a size fits no larger one is looked at.
    """
    found, searched = [], 0
    for spread in sharded(work):
        for rows in batched(work, spread):
            fit = [one for row in rows if (one := _first(work, row))]
            found += fit
            searched += sum(map(len, rows))
            if not fit:
                break
    return found, searched


def _first(work: Work, row: list[Plan]) -> Fitting | None:
    for plan in row:
        if plan.recompute == "selective" and plan.attention == "flash":  # keeps what "none" does: there are no maps
            continue
        stage, held = fullest(work.model, plan)
        if held.total <= work.usable:
            return plan, stage, held
    return None


def layout(plan: Plan) -> tuple:
    """What makes two plans different enough to show both."""
    return plan.tp, plan.cp, plan.pp, plan.zero, plan.ep


def timed(work: Work, fit: list[Fitting]) -> list[Ranked]:
    """The plans, timed from the least bound on; of a layout those that may still be its best or within `NEAR`."""
    what = work.cluster, work.stack, work.constants
    bounds = sorted(((least_seconds(work.model, one[0], *what), n) for n, one in enumerate(fit)))
    best: dict[tuple | str, float] = defaultdict(lambda: inf)
    found = []
    for bound, n in bounds:
        plan, stage, held = fit[n]
        if bound > CLOSE * best[layout(plan)] or (bound > NEAR * best["all"] and bound > best[strategy(plan)]):
            continue
        one = ranked(work, plan, stage, held, step_time(work.model, plan, *what))
        found.append(one)
        for key in ("all", one.name, layout(plan)):
            best[key] = min(best[key], one.seconds)
    return found


def uncertain(work: Work, step: StepTime) -> StepTime:
    """The step with the interval of an estimate that no measured step has calibrated."""
    return replace(step, factor=UNCALIBRATED) if work.constants == NOMINAL else step


def ranked(work: Work, plan: Plan, stage: int, held: MemoryBreakdown, step: StepTime, name: str = "") -> Ranked:
    """The plan with its step, tokens a second and share of the peak."""
    gpus = work.cluster.world_size
    share = mfu(
        work.model, batch=work.global_batch, seconds=step.seconds, peak_flops=work.cluster.gpu.flops, num_gpus=gpus
    )
    return Ranked(
        name=name or strategy(plan), plan=plan, stage=stage, held=held, step=uncertain(work, step), mfu=share,
        tokens_per_second=work.tokens / step.seconds,
    )  # fmt: skip
