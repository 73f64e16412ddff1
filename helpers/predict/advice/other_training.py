"""Lists the plans of three other kinds of training: offload, adapters, and networks of convolutions.

They are few, so each one is timed. `offload_plans` keeps the optimizer on the host, `adapter_plans` trains adapters
alone (LoRA, QLoRA), and `image_plans` trains a ResNet. search.py lists the plans of a usual training.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from helpers.predict.advice.fit import fullest_stage
from helpers.predict.advice.plans import PlanEstimate, PlanRequest, StrategyName, strategy_of
from helpers.predict.advice.search import MICRO_BATCHES, divisors, estimate, with_interval
from helpers.predict.memory import fine_tuning
from helpers.predict.memory.states import gradient_bytes, params_per_layer, table_params
from helpers.predict.time.convolutions import resnet_step
from helpers.predict.time.offload_and_adapters import adapter_step, offloaded_step
from helpers.records import MemoryBreakdown
from helpers.specs import Plan

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
    for parts in divisors(each, most=64):
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
        bars = tuple(bar if bar.name in once else bar._replace(seconds=parts * bar.seconds) for bar in step.bars)
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
