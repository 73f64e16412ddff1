"""Lists the plans that could train a model on a cluster, keeps those that fit in memory, and estimates their steps.

The planner (advise.py) calls `fitting_plans` and then `timed_plans`. Plans are dropped first by their memory and then
by a lower bound of their step time, so that only promising plans are timed in full. A `PlanRequest` is the question
(model, cluster, batch), a `Plan` one answer, and a `PlanEstimate` a plan with its memory and step; see plans.py.

These vary:
    tp, cp, pp, ep   tp inside a node; a pipeline stage is whole nodes, or an equal part of one
    dp               the GPUs that are left
    num_chunks       virtual stages per pipeline rank
    micro_batch      powers of 2
    zero             stages 2 and 3 only without a pipeline, because for each of its many micro-batches stage 2 would
                     reduce-scatter the gradients, and stage 3 would gather the parameters as well
    recompute        the least that fits, because more never helps
    precision        of gradients, where several micro-batches are added up: fp32, or 16 bits
Sequence parallelism is on wherever tp is above 1. Ranks are numbered as in Megatron-LM: tp fastest, then cp, dp, pp.

Three kinds of training have their own small lists at the end of the file: the optimizer on the host (`offload_plans`),
adapters (`adapter_plans`), and networks of convolutions (`image_plans`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from math import ceil, gcd, inf

from helpers.predict.advice.fit import fullest_stage
from helpers.predict.advice.plans import PlanEstimate, PlanRequest, StrategyName, strategy_of, words
from helpers.predict.memory import fine_tuning
from helpers.predict.memory.states import gradient_bytes, params_per_layer, rank_states, table_params
from helpers.predict.time.convolutions import resnet_step
from helpers.predict.time.flops import mfu
from helpers.predict.time.step import (
    NOMINAL,
    UNCALIBRATED,
    StepTime,
    adapter_step,
    least_seconds,
    offloaded_step,
    step_time,
)
from helpers.records import MemoryBreakdown
from helpers.specs import Plan

LARGEST_MICRO_BATCH, LARGEST_CP = 64, 64  # sequences; ranks
LEAST_TOKENS = 1024  # tokens of a sequence on a rank under context parallelism
MOST_SUMS = 32  # micro-batches whose gradients may be added up in 16 bits
# A plan is timed only if its lower bound is below CLOSE times the best step of its layout, and below NEAR times the
# best step of all or below the best of its strategy.
NEAR, CLOSE = 1.3, 1.06
FittingPlan = tuple[Plan, int, MemoryBreakdown]  # a plan, its fullest pipeline stage, and the memory of a rank there
MICRO_BATCHES = tuple(2**n for n in range(LARGEST_MICRO_BATCH.bit_length()))  # 1, 2, 4, ... 64


def axis_layouts(request: PlanRequest) -> Iterator[Plan]:
    """All (tp, cp, pp, dp, ep) that the cluster's topology and the model's experts allow, as plans.

    Whether tp divides the model's widths is not checked; `reason_against` does that.
    """
    cluster, model = request.cluster, request.model
    for tp in _divisors(cluster.gpus_per_node):
        for cp in (2**n for n in range(LARGEST_CP.bit_length())):
            # Context parallelism needs enough tokens on each rank, and is not modelled for attention with a window.
            is_excluded = cp > 1 and (model.seq < LEAST_TOKENS * cp or model.window)
            if is_excluded or cluster.world_size % (tp * cp):
                break  # every larger cp is impossible, too
            left = cluster.world_size // (tp * cp)
            for pp in _divisors(left, most=model.num_layers):
                block = cluster.world_size // pp  # ranks of a stage: whole nodes, or a node's equal part
                if block % cluster.gpus_per_node == 0 or cluster.gpus_per_node % block == 0:
                    plan = Plan(
                        tp=tp, cp=cp, pp=pp, dp=left // pp, attention=request.attention, optimizer=request.optimizer,
                        sequence_parallel=tp > 1 and model.seq % tp == 0,
                        **({"cp_method": request.stack.cp_method} if cp > 1 else {}),
                    )  # fmt: skip
                    yield from (replace(plan, ep=ep) for ep in _divisors(gcd(model.num_experts, plan.dp * cp)))


def _divisors(number: int, most: int | None = None) -> list[int]:
    """The divisors of `number` up to `most`, smallest first."""
    return [size for size in range(1, min(number, most or number) + 1) if number % size == 0]


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


def sharded_plans(request: PlanRequest) -> Iterator[Plan]:
    """Layouts that suit model and batch, with each ZeRO stage with which at least the model states fit."""
    for axes in axis_layouts(request):
        if reason_against(request, axes):
            continue
        stages = (0, 1) if axes.pp > 1 else (0, 1, 2, 3)
        for zero in stages if axes.dp * axes.cp > 1 else (0,):
            plan = replace(axes, zero=zero)
            if _least_bytes(request, plan) <= request.usable:
                yield plan


def _least_bytes(request: PlanRequest, plan: Plan) -> int:
    """A lower bound of the bytes of a rank: model states alone, on the stage in the middle of the pipeline.

    With three stages or more, that stage has neither the embedding nor the head.
    """
    lightest = replace(plan, precision=request.precision or "mixed")  # the precision with the fewest bytes
    return rank_states(request.model, lightest, plan.pp // 2).total


def plans_by_micro_batch(request: PlanRequest, layout: Plan) -> Iterator[list[list[Plan]]]:
    """For each micro-batch size, smallest first: rows of plans. Of each row the first plan that fits is the best.

    Within a row, plans recompute more and more, and their gradients may get less precise. layout: a plan whose axes and
    ZeRO stage are chosen already.
    """
    each = request.global_batch // layout.dp  # sequences of a replica
    for size in MICRO_BATCHES:
        if each % size:
            break
        sized = replace(layout, micro_batch=size, num_microbatches=each // size)
        yield [
            [
                replace(
                    sized, num_chunks=chunks, schedule=schedule_of(chunks), precision=precision, recompute=recompute
                )
                for precision in precisions
                for recompute in ("none", "selective", "full")
            ]
            for chunks in _chunks(request.model.num_layers, layout.pp, each // size)
            for precisions in _precisions(request, each // size)
        ]


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


def fitting_plans(request: PlanRequest) -> tuple[list[FittingPlan], int]:
    """The first plan of each row that fits, and the number of plans that were examined.

    Memory grows with the micro-batch, so where no plan of a size fits, larger sizes are skipped.
    """
    fitting, searched = [], 0
    for layout in sharded_plans(request):
        for rows in plans_by_micro_batch(request, layout):
            of_size = [_first_that_fits(request, row) for row in rows]
            fitting += filter(None, of_size)
            searched += sum(map(len, rows))
            if not any(of_size):
                break
    return fitting, searched


def _first_that_fits(request: PlanRequest, row: list[Plan]) -> FittingPlan | None:
    """The first plan of a row that fits in memory, None where none does."""
    for plan in row:
        if plan.recompute == "selective" and plan.attention == "flash":  # keeps what "none" does: there are no maps
            continue
        stage, breakdown = fullest_stage(request.model, plan)  # the stage that needs most memory, and its bytes by kind
        if breakdown.total <= request.usable:
            return plan, stage, breakdown
    return None


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


def timed_plans(request: PlanRequest, fitting: list[FittingPlan]) -> list[PlanEstimate]:
    """Estimate the steps of the plans in the order of their lower bounds, and skip plans that can no longer matter.

    A plan matters if it may be nearly the best of its layout (`variants_key`), and nearly the best of all or the best
    of its strategy.
    """
    machine = request.cluster, request.stack, request.constants
    # (lower bound, position in `fitting`)
    bounds = sorted((least_seconds(request.model, plan, *machine), n) for n, (plan, _, _) in enumerate(fitting))
    best: dict[tuple | str, float] = defaultdict(lambda: inf)  # seconds by "all", by strategy and by `variants_key`
    estimates = []
    for bound, n in bounds:
        plan, stage, breakdown = fitting[n]
        is_far_from_its_layout = bound > CLOSE * best[variants_key(plan)]
        is_far_from_all = bound > NEAR * best["all"] and bound > best[strategy_of(plan)]
        if is_far_from_its_layout or is_far_from_all:
            continue
        candidate = estimate(request, plan, stage, breakdown, step_time(request.model, plan, *machine))
        estimates.append(candidate)
        for key in ("all", candidate.name, variants_key(plan)):
            best[key] = min(best[key], candidate.seconds)
    return estimates


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


# For ResNets, bytes per parameter under torch.amp with SGD: fp32 and 16-bit weights, gradients, momentum.
IMAGE_STATES = (4 + 2, 4, 4)
# Bytes per output element: the convolution's, which batch norm keeps, and the ReLU's, which the next convolution keeps.
IMAGE_OUTPUT = 2 + 2


def _data_parallel(request: PlanRequest, zero: int) -> Iterator[Plan]:
    """Plans with data parallelism alone: micro-batches by powers of 2, recomputation "none" or "full"."""
    dp = request.cluster.world_size
    each = request.global_batch // dp  # sequences of a rank
    for size in MICRO_BATCHES:
        if request.global_batch % dp or each % size:
            return
        for recompute in ("none", "full"):
            yield Plan(
                dp=dp, zero=zero, micro_batch=size, num_microbatches=each // size, recompute=recompute,
                precision=request.precision or "mixed", optimizer=request.optimizer, attention=request.attention,
            )  # fmt: skip


def offload_plans(request: PlanRequest) -> Iterator[PlanEstimate]:
    """The fitting plans with gradients and optimizer on the host; on several GPUs with ZeRO-3."""
    for plan in _data_parallel(request, 3 if request.cluster.world_size > 1 else 0):  # the ZeRO stage
        stage, breakdown = fullest_stage(request.model, plan)
        # The gradients of one layer (or token table) at a time are on the GPU, until they have travelled to the host.
        buffer = max(params_per_layer(request.model, plan), table_params(request.model, plan)) * gradient_bytes(plan)
        more = buffer if plan.zero == 0 else 0  # with ZeRO-3 the gradient buffer is among the temporaries already
        on_gpu = replace(breakdown, optimizer=0, gradients=0, temporaries=breakdown.temporaries + more)
        if on_gpu.total <= request.usable:
            step = offloaded_step(request.model, plan, request.cluster, request.stack, request.constants)
            candidate = estimate(request, plan, stage, on_gpu, step, StrategyName.OFFLOAD)
            host_bytes = (breakdown.optimizer + breakdown.gradients) * request.cluster.gpus_per_node
            yield replace(candidate, host_bytes=host_bytes)


def adapter_plans(request: PlanRequest, rank: int) -> Iterator[PlanEstimate]:
    """Plans with LoRA, its frozen weights replicated or sharded, and with QLoRA; those that do not fit have no step.

    rank: the inner width of an adapter.
    """
    for name, zero in ((StrategyName.LORA, 0), (StrategyName.LORA, 3), (StrategyName.QLORA, 0)):
        if zero and request.cluster.world_size == 1:
            continue
        for plan in _data_parallel(request, zero):
            breakdown = adapter_memory(request, plan, rank, name)
            if breakdown.total > request.usable:
                yield PlanEstimate(name=name, plan=plan, memory=breakdown)
                continue
            adapters = dict(rank=rank, is_quantized=name == StrategyName.QLORA)
            step = adapter_step(request.model, plan, request.cluster, request.stack, request.constants, **adapters)
            candidate = estimate(request, plan, 0, breakdown, step, name)
            yield replace(candidate, mfu=candidate.mfu * 2 / 3)  # the gradients of frozen weights are not computed


def adapter_memory(request: PlanRequest, plan: Plan, rank: int, name: str) -> MemoryBreakdown:
    """Bytes of frozen weights, of adapters with their optimizer state, and of the full model's activations."""
    states = (fine_tuning.qlora if name == StrategyName.QLORA else fine_tuning.lora)(request.model, rank=rank)
    _, breakdown = fullest_stage(request.model, plan)
    parameters = ceil(states.parameters / (plan.dp if plan.zero else 1))
    return replace(breakdown, parameters=parameters, gradients=states.gradients, optimizer=states.optimizer)


def image_plans(request: PlanRequest) -> Iterator[PlanEstimate]:
    """DDP plans of a ResNet with 1 to 64 micro-batches; those that do not fit have no step."""
    gpus, model = request.cluster.world_size, request.model
    if request.global_batch % gpus:
        return
    each = request.global_batch // gpus
    for parts in _divisors(each, most=64):
        plan = Plan(
            dp=gpus, micro_batch=each // parts, num_microbatches=parts, optimizer="sgd_momentum",
            precision="mixed_fp32_grads" if parts > 1 else "mixed",
        )  # fmt: skip
        breakdown = image_memory(request, plan)
        if breakdown.total > request.usable:
            yield PlanEstimate(name=strategy_of(plan), plan=plan, memory=breakdown)
            continue
        step = resnet_step(
            model, each // parts, request.cluster, constants=request.constants, data_hidden=request.stack.data_hidden
        )
        once = ("gradients", "optimizer", "step's constant")  # bars that do not come once per micro-batch
        bars = tuple(bar if bar.name in once else replace(bar, seconds=parts * bar.seconds) for bar in step.bars)
        step = with_interval(request, replace(step, bars=bars))
        # A multiplication and an addition per weight and pixel, in forward and twice in backward.
        flops_per_image = 6 * sum(one.pixels * one.kernel**2 * one.inputs * one.outputs for one in model.convolutions)
        rate = request.global_batch / step.seconds  # images per second
        share = flops_per_image * rate / gpus / request.cluster.gpu.flops
        name = strategy_of(plan)
        # An image counts as one token.
        yield PlanEstimate(name=name, plan=plan, memory=breakdown, step=step, mfu=share, tokens_per_second=rate)


def image_memory(request: PlanRequest, plan: Plan) -> MemoryBreakdown:
    """Bytes of weights, gradients and momentum, and of the outputs of each convolution and its ReLU."""
    kept = sum(each.pixels * each.outputs for each in request.model.convolutions) * IMAGE_OUTPUT
    states = dict(zip(("parameters", "gradients", "optimizer"), IMAGE_STATES, strict=True))
    return MemoryBreakdown(
        **{kind: size * request.model.num_params for kind, size in states.items()},
        activations=kept * plan.micro_batch, instant="as backward starts",
    )  # fmt: skip
