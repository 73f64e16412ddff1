"""Lists the plans that could train a model on a cluster, keeps those that fit in memory, and estimates their steps.

The planner (advise.py) calls `timed_plans`. It takes plans in the order of a lower bound of their step time, and drops
those that can no longer matter or do not fit in memory, so that only promising plans are timed in full. A `PlanRequest`
is the question (model, cluster, batch), a `Plan` one answer, and a `PlanEstimate` a plan with its memory and step; see
plans.py.

These vary:
    tp, cp, pp, ep   tp inside a node; a pipeline stage is whole nodes, or an equal part of one
    cp_method        that of the stack, or another one that it offers if a layer is faster with it (`context_method`)
    dp               the GPUs that are left
    num_chunks       virtual stages per pipeline rank
    micro_batch      powers of 2
    zero             stages 2 and 3 only without a pipeline, because for each of its many micro-batches stage 2 would
                     reduce-scatter the gradients, and stage 3 would gather the parameters as well
    recompute        the least that fits, because more never helps
    precision        of gradients, where several micro-batches are added up: fp32, or 16 bits
Sequence parallelism is on wherever tp is above 1. Ranks are numbered as in Megatron-LM: tp fastest, then cp, dp, pp.

Three kinds of training have their own small lists in other_training.py.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from heapq import heappop, heappush
from math import ceil, gcd, inf
from typing import NamedTuple

from helpers.predict.advice.plans import PlanEstimate, PlanRequest, strategy_of, words
from helpers.predict.memory.rank_memory import RankMemory
from helpers.predict.time.flops import mfu
from helpers.predict.time.step import NOMINAL, UNCALIBRATED, StepModel, StepTime
from helpers.records import MemoryBreakdown
from helpers.records.timeline import garbage_collector_paused
from helpers.specs import Plan

LARGEST_MICRO_BATCH, LARGEST_CP = 64, 64  # sequences; ranks
LEAST_TOKENS = 1024  # tokens of a sequence on a rank under context parallelism
MOST_SUMS = 32  # micro-batches whose gradients may be added up in 16 bits
# A plan is timed only if its lower bound is below CLOSE times the best step of its layout, and below NEAR times the
# best step of all or below the best of its strategy.
NEAR, CLOSE = 1.3, 1.06
# Another method of context parallelism than the stack's is taken only where a layer is faster by more than this share.
# No measured pair compares methods, and most of the difference is `Stack.context_flash`, an assumption of about 15 %.
METHOD_TIE = 0.2
RECOMPUTE = ("none", "selective", "full")
MICRO_BATCHES = tuple(2**n for n in range(LARGEST_MICRO_BATCH.bit_length()))  # 1, 2, 4, ... 64


def axis_layouts(request: PlanRequest) -> Iterator[Plan]:
    """All (tp, cp, pp, dp, ep) that the cluster's topology and the model's experts allow, as plans.

    Whether tp divides the model's widths is not checked; `reason_against` does that.
    """
    cluster, model = request.cluster, request.model
    for tp in divisors(cluster.gpus_per_node):
        for cp in (2**n for n in range(LARGEST_CP.bit_length())):
            # Context parallelism needs enough tokens on each rank, and is not modelled for attention with a window.
            is_excluded = cp > 1 and (model.seq < LEAST_TOKENS * cp or model.window)
            if is_excluded or cluster.world_size % (tp * cp):
                break  # every larger cp is impossible, too
            left, method = cluster.world_size // (tp * cp), context_method(request, tp, cp)
            for pp in divisors(left, most=model.num_layers):
                block = cluster.world_size // pp  # ranks of a stage: whole nodes, or a node's equal part
                if block % cluster.gpus_per_node == 0 or cluster.gpus_per_node % block == 0:
                    plan = Plan(
                        tp=tp, cp=cp, pp=pp, dp=left // pp, attention=request.attention, optimizer=request.optimizer,
                        sequence_parallel=tp > 1 and model.seq % tp == 0, cp_method=method,
                    )  # fmt: skip
                    fewer = last_stage_layers(model.num_layers, pp)
                    for ep in divisors(gcd(model.num_experts, plan.dp * cp)):
                        yield plan.unchecked_copy(ep=ep, last_stage_layers=fewer)


def last_stage_layers(num_layers: int, pp: int) -> int | None:
    """Layers of the last stage, where a prime number of layers divides into no equal stages: what the others leave.

    None where the usual division suits (see `Plan.layers_on_stage`), or where nothing would be left.
    """
    if len(divisors(num_layers)) > 2 or num_layers % pp == 0 or (num_layers + 2) % pp == 0:
        return None
    left = num_layers - (pp - 1) * ceil(num_layers / pp)
    return left if left > 0 else None


def method_seconds(request: PlanRequest, tp: int, cp: int) -> dict[str, float]:
    """Seconds of a layer by each method of context parallelism that the stack offers and the heads allow."""
    time = StepModel(request.model, request.cluster, request.stack, request.constants)
    is_split = tp > 1 and request.model.seq % tp == 0
    plans = [
        Plan(tp=tp, cp=cp, cp_method=method, attention=request.attention, sequence_parallel=is_split)
        for method in (request.stack.cp_method, *request.stack.cp_choices)
    ]
    return {plan.cp_method: time.layer_seconds(plan) for plan in plans if not has_reason_against(request, plan)}


def context_method(request: PlanRequest, tp: int, cp: int) -> str:
    """The method of context parallelism on tp * cp ranks: the stack's, unless the heads forbid it or another is faster.

    Ulysses ("all_to_all") needs as many heads as tp * cp. Where no method suits the model it is the stack's, which
    `reason_against` then refuses. Without context parallelism it is the default of Plan, which means nothing there.
    """
    if cp == 1:
        return Plan.cp_method
    usual = request.stack.cp_method
    if not request.stack.cp_choices:
        return usual
    seconds = method_seconds(request, tp, cp)
    fastest = min(seconds, key=seconds.get, default=usual)
    return usual if usual in seconds and seconds[usual] <= (1 + METHOD_TIE) * seconds[fastest] else fastest


def divisors(number: int, most: int | None = None) -> list[int]:
    """The divisors of `number` up to `most`, smallest first."""
    return [size for size in range(1, min(number, most or number) + 1) if number % size == 0]


def has_reason_against(request: PlanRequest, axes: Plan) -> bool:
    """Whether `reason_against` has a reason, without putting it into words."""
    try:
        axes.check(request.model)
    except ValueError:
        return True
    return request.global_batch % axes.dp > 0


def reason_against(request: PlanRequest, axes: Plan) -> str:
    """Why the model or the batch cannot be divided by these axes, as a few words; empty where it can."""
    try:
        axes.check(request.model)
    except ValueError as error:  # such as "Plan: tp=3 does not divide num_heads=32": both numbers, with their names
        part, whole = re.findall(r"(?:\w+ \* )?\w+=\d+", str(error))
        # "one another" is in the message about key and value heads, where tp or the heads may be the larger number.
        return words("cannot.divide_heads" if "one another" in str(error) else "cannot.divide", part=part, whole=whole)
    if request.global_batch % axes.dp:
        return words("cannot.batch", batch=request.global_batch, ranks=axes.dp)
    return ""


def sharded_plans(request: PlanRequest) -> Iterator[list[Plan]]:
    """For each layout that suits model and batch, its ZeRO stages, as plans, with which at least the states fit."""
    memory = RankMemory(request.model)
    for axes in axis_layouts(request):
        if has_reason_against(request, axes):
            continue
        # The precision with the fewest bytes, for a lower bound.
        lightest = axes.unchecked_copy(precision=request.precision or "mixed")
        stages = (0, 1) if axes.pp > 1 else (0, 1, 2, 3)
        yield [
            axes.unchecked_copy(zero=zero)
            for zero in (stages if axes.dp * axes.cp > 1 else (0,))
            if memory.least_bytes(lightest.unchecked_copy(zero=zero)) <= request.usable
        ]


class PlanRow:
    """Plans that differ in precision and recomputation alone, of which the first one that fits is the best.

    They recompute more and more, and their gradients may get less precise. base: the micro-batch, chunks and axes that
    they share. precisions: theirs, the best first.
    """

    def __init__(self, base: Plan, precisions: Sequence[str]) -> None:
        self.base, self.precisions = base, precisions

    def plans(self, zero: int, recomputes: Sequence[str]) -> Iterator[Plan]:
        """The plans, the best first, with this stage of ZeRO. Each is made when it is asked for.

        recomputes: the kinds of recomputation, such as ("none", "full"), the best first.
        """
        for precision in self.precisions:
            for recompute in recomputes:
                yield self.base.unchecked_copy(zero=zero, precision=precision, recompute=recompute)


class MicroBatch:
    """The plans of one layout with one size of the micro-batch.

    base: the axes and the size that they share. lightest: a plan of them with the fewest bytes, which also computes
    least in a pass if it does not recompute. num_plans: how many there are.
    """

    def __init__(self, request: PlanRequest, layout: Plan, size: int) -> None:
        count = request.global_batch // layout.dp // size
        # The precision with the fewest bytes.
        self.base = layout.unchecked_copy(
            micro_batch=size, num_microbatches=count, precision=request.precision or "mixed"
        )
        self.lightest = self.base.unchecked_copy(recompute="full")
        self.chunks = _chunks(request.model.num_layers, layout.pp, count)
        self.precisions = _precisions(request, count)
        self.num_plans = len(self.chunks) * sum(map(len, self.precisions)) * len(RECOMPUTE)

    @cached_property
    def rows(self) -> list[PlanRow]:
        """The plans in rows."""
        return [
            PlanRow(self.base.unchecked_copy(num_chunks=chunks, schedule=schedule_of(chunks)), precisions)
            for chunks in self.chunks
            for precisions in self.precisions
        ]


def micro_batches(request: PlanRequest, layout: Plan) -> list[MicroBatch]:
    """The plans of a layout, whose axes and ZeRO stage are chosen already, by micro-batch, smallest first."""
    each = request.global_batch // layout.dp  # sequences of a replica; the sizes are powers of 2
    return [MicroBatch(request, layout, size) for size in MICRO_BATCHES if each % size == 0]


def schedule_of(num_chunks: int) -> str:
    """The schedule of a pipeline with so many chunks per rank: interleaved 1F1B is the one for several."""
    return "interleaved" if num_chunks > 1 else "one_f_one_b"


def _precisions(request: PlanRequest, microbatches: int) -> tuple[tuple[str, ...], ...]:
    """The precisions to compare, as rows; a later one of a row is taken only where the first does not fit.

    With few micro-batches both precisions are good, so each gets a row. With many, sums in 16 bits lose too much, so
    they come second in one row.
    """
    if request.precision:
        return ((request.precision,),)
    if microbatches == 1:
        return (("mixed",),)
    if microbatches > MOST_SUMS:
        return (("mixed_fp32_grads", "mixed"),)
    return (("mixed_fp32_grads",), ("mixed",))


@lru_cache(maxsize=1024)
def _chunks(layers: int, pp: int, microbatches: int) -> tuple[int, ...]:
    """The numbers of chunks per rank that divide the layers evenly; 1 alone where micro-batches do not divide by pp.

    Embedding and head may count as a layer each, so that the first and the last chunk have one layer fewer.
    """
    if pp == 1 or microbatches % pp:
        return (1,)
    more = range(2, (layers + 2) // pp + 1)
    return (1, *(n for n in more if layers % (pp * n) == 0 or (layers + 2) % (pp * n) == 0))


def layout_key(plan: Plan) -> tuple:
    """What two plans must differ in to be shown both, and what "layout" means in this package."""
    return plan.tp, plan.cp, plan.pp, plan.zero, plan.ep


def has_16_bit_sums(plan: Plan) -> bool:
    """Whether gradients of several micro-batches are added up in 16 bits."""
    return plan.num_microbatches > 1 and plan.precision == "mixed"


def variants_key(plan: Plan) -> tuple:
    """What two plans must differ in so that both may matter: the layout, or whether gradients are added up in 16 bits.

    Plans with the same key differ only in micro-batch, chunks and recomputation.
    """
    return *layout_key(plan), has_16_bit_sums(plan)


def timed_plans(request: PlanRequest) -> tuple[list[PlanEstimate], int]:
    """The plans that fit and matter, with their steps, and the number of plans that were examined.

    A plan matters if it may be nearly the best of its layout (`variants_key`), and nearly the best of all or the best
    of its strategy.
    """
    search = _Search(request)
    with garbage_collector_paused():  # of the many small objects hardly any is freed before the end
        for number, sharded in enumerate(sharded_plans(request)):
            search.add(number, sharded)
        return search.timed(), search.searched


class _Layout(NamedTuple):
    """A plan with its axes and ZeRO stage, its `layout_key`, and the name of its strategy."""

    plan: Plan
    key: tuple
    name: str


class _Search:
    """Takes plans in the order of lower bounds of their steps, and skips those that can no longer matter.

    queue: (lower bound, number, layout, item), as a heap. At first an item has all plans of a micro-batch size. When
    its turn comes, its rows are put into the queue, and when the turn of a row comes, its first plan that fits. Of
    equal bounds, the lower number (of the layout, and of the row in it) comes first. best: the shortest step so far of
    "all" plans, of each strategy and of each `variants_key`. searched: the number of plans that were examined.
    """

    def __init__(self, request: PlanRequest) -> None:
        self.request, self.searched = request, 0
        self.memory = RankMemory(request.model)
        self.time = StepModel(request.model, request.cluster, request.stack, request.constants)
        self.queue: list[tuple[float, tuple[int, int, int], _Layout, MicroBatch | PlanRow | Plan]] = []
        self.best: dict[tuple | str, float] = defaultdict(lambda: inf)
        self.bounds: dict[MicroBatch, list[float]] = {}  # of the rows

    def add(self, number: int, sharded: Sequence[Plan]) -> None:
        """Put the plans of these layouts, which differ in their ZeRO stage alone, into the queue.

        Memory grows with the micro-batch, so sizes above the first of which no plan fits are left out. ZeRO does not
        change the lower bounds. number: of the layouts' axes.
        """
        sizes = micro_batches(self.request, sharded[0]) if sharded else []
        bounds = [self._least_seconds(of_size) for of_size in sizes]
        for plan in sharded:
            zero, layout = plan.zero, _Layout(plan, layout_key(plan), strategy_of(plan))
            count = bisect_left(sizes, True, key=lambda of_size: not self._fits(of_size.lightest, zero))
            self.searched += sum(of_size.num_plans for of_size in sizes[: count + 1])
            for place in range(count):
                heappush(self.queue, (bounds[place], (number, zero, 1000 * place), layout, sizes[place]))

    def _least_seconds(self, plans: MicroBatch) -> float:
        """A lower bound for all plans of a micro-batch: that of the one without chunks, with the shortest wait."""
        least = self.time.least_seconds(plans.base, max(plans.chunks))
        return (1 - 1e-9) * least  # because rounding may make another one less

    def timed(self) -> list[PlanEstimate]:
        """The plans that matter, with their steps."""
        estimates = []
        while self.queue:
            bound, number, layout, item = heappop(self.queue)
            if bound > NEAR * self.best["all"] and bound > self.best[layout.name]:
                continue
            if isinstance(item, MicroBatch):
                self._add_rows(number, layout, item)
            elif isinstance(item, PlanRow):
                self._add_plan(bound, number, layout, item)
            elif bound <= CLOSE * self.best[variants_key(item)]:
                candidate = self.estimate(item)
                estimates.append(candidate)
                for key in ("all", candidate.name, variants_key(item)):
                    self.best[key] = min(self.best[key], candidate.seconds)
        return estimates

    def _add_rows(self, number: tuple[int, int, int], layout: _Layout, plans: MicroBatch) -> None:
        """Put the rows of a micro-batch into the queue. Their bounds are shared by all ZeRO stages."""
        if plans not in self.bounds:
            self.bounds[plans] = [
                min(self.time.least_seconds(row.base.unchecked_copy(precision=name)) for name in row.precisions)
                for row in plans.rows
            ]
        axes, zero, first = number
        for place, (bound, row) in enumerate(zip(self.bounds[plans], plans.rows, strict=True), first):
            heappush(self.queue, (bound, (axes, zero, place), layout, row))

    def _add_plan(self, bound: float, number: tuple[int, int, int], layout: _Layout, row: PlanRow) -> None:
        """Put the first plan of a row that fits into the queue, with its own bound, unless it cannot matter."""
        # With flash attention "selective" keeps what "none" does, because there are no maps.
        recomputes = ("none", "full") if self.request.attention == "flash" else RECOMPUTE
        for plan in row.plans(layout.plan.zero, recomputes):
            if len(row.precisions) == 1 and bound > CLOSE * self.best[variants_key(plan)]:
                return  # all plans of such a row have the same `variants_key`
            if self._fits(plan, plan.zero):
                heappush(self.queue, (self.time.least_seconds(plan), number, layout, plan))
                return

    def _fits(self, plan: Plan, zero: int) -> bool:
        """Whether the plan with this stage of ZeRO fits."""
        return self.memory.fits(plan if plan.zero == zero else plan.unchecked_copy(zero=zero), self.request.usable)

    def estimate(self, plan: Plan) -> PlanEstimate:
        """The plan with its memory and its step."""
        stage, breakdown = self.memory.fullest_stage(plan)
        return estimate(self.request, plan, stage, breakdown, self.time.step(plan))


def fastest_plan(request: PlanRequest, plans: Iterable[Plan]) -> PlanEstimate:
    """The fastest of these plans. ValueError where there is none.

    Plans come in the order of their lower bounds, so those behind the first one that is too slow are not timed.
    """
    search = _Search(request)
    bounds = sorted((search.time.least_seconds(plan), number, plan) for number, plan in enumerate(plans))
    estimates: list[PlanEstimate] = []
    for bound, _, plan in bounds:
        if estimates and bound > CLOSE * min(one.seconds for one in estimates):
            break
        estimates.append(search.estimate(plan))
    return min(estimates, key=lambda one: one.seconds)


def with_interval(request: PlanRequest, step: StepTime) -> StepTime:
    """The step with the 80 % interval of an uncalibrated estimate, unless the request has calibrated constants."""
    return replace(step, factor=UNCALIBRATED) if request.constants == NOMINAL else step


def estimate(
    request: PlanRequest, plan: Plan, stage: int, breakdown: MemoryBreakdown, step: StepTime, name: str = ""
) -> PlanEstimate:
    """The plan with its memory, step, tokens per second and MFU. name: of the strategy, if not that of the plan."""
    share = mfu(
        request.model, batch=request.global_batch, seconds=step.seconds, peak_flops=request.cluster.gpu.flops,
        num_gpus=request.cluster.world_size,
    )  # fmt: skip
    return PlanEstimate(
        name=name or strategy_of(plan), plan=plan, stage=stage, memory=breakdown, step=with_interval(request, step),
        mfu=share, tokens_per_second=request.tokens / step.seconds,
    )  # fmt: skip
