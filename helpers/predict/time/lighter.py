"""Steps that need less of a GPU: the optimizer on the host, and adapters (LoRA, QLoRA) instead of the whole model.

Offload (Ren et al. 2021, ZeRO-Offload): gradients go down behind backward, micro-batch by micro-batch; the host's step,
bound by its memory, and the way up are exposed. Adapters: nobody needs the gradients of frozen weights, a third of the
products. QLoRA writes each matrix out in 16 bits before each product (Dettmers et al. 2023, section 3): `UNPACKING`.
Left out: the adapters' own small products.
"""

from __future__ import annotations

from dataclasses import replace

from helpers.predict.memory.adapters import adapter_params, matrices
from helpers.predict.memory.states import gradient_bytes, num_shards, optimizer_bytes, params_per_rank, weight_bytes
from helpers.predict.time.model import NOMINAL, Bar, Constants, StepTime, pass_seconds, step_time
from helpers.predict.time.stacks import Stack
from helpers.predict.time.terms.layer import shapes
from helpers.predict.time.terms.products import product_seconds
from helpers.specs import LINKS, Cluster, ModelSpec, Plan

HOST_LINK = LINKS["PCIe 4 x16"]
HOST_BANDWIDTH = 100e9  # bytes a second of a node's memory, shared by its GPUs: a rule of thumb
UNPACKED = 0.5 + 2  # bytes of a weight: read in 4 bits, written in 16
# Seconds of unpacking over those of its bytes. Qwen's fine-tuning table (its README: Q-LoRA of 72B on one A100, 8
# micro-batches of 256 to 8,192 tokens in 27 to 180 s) leaves 2.3 to 2.8 s per micro-batch beside what grows with
# tokens; its 7B takes 1.8 s longer per step in 4 bits than in 16. The bytes alone would take 0.30 and
# 0.03 s per micro-batch.
UNPACKING = 8.5


def offloaded_step(
    model: ModelSpec, plan: Plan, cluster: Cluster, stack: Stack, constants: Constants = NOMINAL
) -> StepTime:
    """A step whose gradients and optimizer live on the host."""
    bars = [bar for bar in step_time(model, plan, cluster, stack, constants).bars if bar.name != "optimizer"]
    here = params_per_rank(model, plan) / (num_shards(plan) if plan.zero else 1)
    backward = sum(pass_seconds(model, plan, cluster, stack, constants)[1])
    down = max(0.0, HOST_LINK.seconds(here * gradient_bytes(plan)) - backward) * plan.num_microbatches
    touched = (2 * optimizer_bytes(plan) + gradient_bytes(plan) + weight_bytes(plan)) * cluster.gpus_per_node * here
    bars += [
        Bar(name="gradients to the host", seconds=down, binds="host"),
        Bar(name="optimizer on the host", seconds=touched / HOST_BANDWIDTH, binds="host"),
        Bar(name="parameters from the host", seconds=HOST_LINK.seconds(here * weight_bytes(plan)), binds="host"),
    ]
    return StepTime(bars=tuple(bar for bar in bars if bar.seconds > 0))


def adapter_step(
    model: ModelSpec, plan: Plan, cluster: Cluster, stack: Stack, constants: Constants = NOMINAL, *, rank: int,
    is_quantized: bool = False,
) -> StepTime:  # fmt: skip
    """A step of adapters of `rank` on query and value (quantized: on all matrices), whose model is frozen."""
    targets = tuple(matrices(model)) if is_quantized else ("query", "value")
    trained = adapter_params(model, rank=rank, targets=targets) / model.num_params
    tokens, passes = plan.micro_batch * model.seq, plan.num_microbatches * model.num_layers
    spared = sum(product_seconds(n, k, tokens, cluster.gpu) for n, k in shapes(model, plan))
    factor = {"gradients": trained, "optimizer": trained}
    bars = []
    for bar in step_time(model, plan, cluster, stack, constants).bars:
        less = passes * spared / constants.products if bar.name == "products" else 0.0
        bars.append(replace(bar, seconds=bar.seconds * factor.get(bar.name, 1.0) - less))
    if is_quantized:
        times = passes * (3 if plan.recompute == "full" else 2)
        rate = 0.85 * cluster.gpu.memory_bandwidth * constants.memory
        unpacked = times * UNPACKING * UNPACKED * model.params_per_layer / rate
        bars.append(Bar(name="weights out of 4 bits", seconds=unpacked, binds="memory"))
    return StepTime(bars=tuple(bar for bar in bars if bar.seconds > 0))
