"""What the search leaves out: the optimizer on the host, adapters, and a network of convolutions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from helpers.predict.advice.fit import fullest
from helpers.predict.advice.search import LARGEST_MICRO_BATCH, ranked, uncertain
from helpers.predict.advice.work import Name, Ranked, Work, strategy
from helpers.predict.memory import adapters
from helpers.predict.memory.states import gradient_bytes, params_per_layer, table_params
from helpers.predict.time.convolutions import resnet_step
from helpers.predict.time.lighter import adapter_step, offloaded_step
from helpers.records import MemoryBreakdown
from helpers.specs import Plan

# Bytes a parameter under torch.amp with SGD: fp32 weights, gradients, momentum, and 16-bit weights. Bytes an output
# number: the convolution's, which batch norm keeps, and the ReLU's, which the next convolution keeps.
IMAGE_STATES, IMAGE_OUTPUT = (4 + 2, 4, 4), 2 + 2


def _data_parallel(work: Work, zero: int) -> Iterator[Plan]:
    """Plans of dp alone: micro-batches by powers of 2, recomputation off or full."""
    dp = work.cluster.world_size
    each = work.global_batch // dp
    for size in (2**n for n in range(LARGEST_MICRO_BATCH.bit_length())):
        if work.global_batch % dp or each % size:
            return
        for recompute in ("none", "full"):
            yield Plan(
                dp=dp, zero=zero, micro_batch=size, num_microbatches=each // size, recompute=recompute,
                precision=work.precision or "mixed", optimizer=work.optimizer, attention=work.attention,
            )  # fmt: skip


def offloaded(work: Work) -> Iterator[Ranked]:
    """Gradients and optimizer on the host; over several GPUs with ZeRO-3. Those that fit."""
    for plan in _data_parallel(work, 3 if work.cluster.world_size > 1 else 0):
        stage, held = fullest(work.model, plan)
        buffer = max(params_per_layer(work.model, plan), table_params(work.model, plan)) * gradient_bytes(plan)
        more = buffer if plan.zero == 0 else 0  # ZeRO-3 counts it among its own
        here = replace(held, optimizer=0, gradients=0, temporaries=held.temporaries + more)
        if here.total <= work.usable:
            step = offloaded_step(work.model, plan, work.cluster, work.stack, work.constants)
            one = ranked(work, plan, stage, here, step, Name.OFFLOAD)
            yield replace(one, host_bytes=(held.optimizer + held.gradients) * work.cluster.gpus_per_node)


def adapted(work: Work, rank: int) -> Iterator[Ranked]:
    """LoRA, its frozen weights whole or sharded, and QLoRA: with their step where they fit, without where not."""
    for name, zero in ((Name.LORA, 0), (Name.LORA, 3), (Name.QLORA, 0)):
        if zero and work.cluster.world_size == 1:
            continue
        for plan in _data_parallel(work, zero):
            held = adapter_memory(work, plan, rank, name)
            if held.total > work.usable:
                yield Ranked(name=name, plan=plan, held=held)
                continue
            how = dict(rank=rank, is_quantized=name == Name.QLORA)
            step = adapter_step(work.model, plan, work.cluster, work.stack, work.constants, **how)
            one = ranked(work, plan, 0, held, step, name)
            yield replace(one, mfu=one.mfu * 2 / 3)  # nobody computes the gradients of frozen weights


def adapter_memory(work: Work, plan: Plan, rank: int, name: str) -> MemoryBreakdown:
    """Frozen weights, adapters with their optimizer, and the activations of the whole model."""
    states = (adapters.qlora if name == Name.QLORA else adapters.lora)(work.model, rank=rank)
    held = fullest(work.model, plan)[1]
    parameters = ceil(states.parameters / (plan.dp if plan.zero else 1))
    return replace(held, parameters=parameters, gradients=states.gradients, optimizer=states.optimizer)


def images(work: Work) -> Iterator[Ranked]:
    """DDP of a ResNet: the whole share of a GPU at once, or in parts."""
    gpus, model = work.cluster.world_size, work.model
    if work.global_batch % gpus:
        return
    each = work.global_batch // gpus
    for parts in (n for n in range(1, min(each, 64) + 1) if each % n == 0):
        how = dict(optimizer="sgd_momentum", precision="mixed_fp32_grads" if parts > 1 else "mixed")
        plan = Plan(dp=gpus, micro_batch=each // parts, num_microbatches=parts, **how)
        held = image_memory(work, plan)
        if held.total > work.usable:
            yield Ranked(name=strategy(plan), plan=plan, held=held)
            continue
        step = resnet_step(
            model, each // parts, work.cluster, constants=work.constants, data_hidden=work.stack.data_hidden
        )
        once = ("gradients", "optimizer", "step's constant")
        bars = tuple(bar if bar.name in once else replace(bar, seconds=parts * bar.seconds) for bar in step.bars)
        step = uncertain(work, replace(step, bars=bars))
        done = 6 * sum(one.pixels * one.kernel**2 * one.inputs * one.outputs for one in model.convolutions)
        mfu = done * work.global_batch / step.seconds / gpus / work.cluster.gpu.flops
        rate = work.global_batch / step.seconds
        yield Ranked(name=strategy(plan), plan=plan, held=held, step=step, mfu=mfu, tokens_per_second=rate)


def image_memory(work: Work, plan: Plan) -> MemoryBreakdown:
    """Weights, gradients and momentum, and what each convolution and its ReLU keep."""
    kept = sum(one.pixels * one.outputs for one in work.model.convolutions) * IMAGE_OUTPUT
    states = dict(zip(("parameters", "gradients", "optimizer"), IMAGE_STATES, strict=True))
    return MemoryBreakdown(
        **{kind: size * work.model.num_params for kind, size in states.items()},
        activations=kept * plan.micro_batch, instant="as backward starts",
    )  # fmt: skip
