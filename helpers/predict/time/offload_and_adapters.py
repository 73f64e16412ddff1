"""Predicts the step of two cheaper kinds of training, by changing the bars of `step_time`: offload, and adapters.

Offload (Ren et al. 2021, ZeRO-Offload): gradients travel to the host during backward, once per micro-batch. The host's
optimizer step, which its memory bandwidth limits, and the way back are exposed, which means that no compute hides them.
Adapters (LoRA, QLoRA): the gradients of frozen weights, a third of the products, are not computed. QLoRA writes each
matrix out in 16 bits before each product (Dettmers et al. 2023, section 3): `UNPACKING`. The adapters' own small
products are left out.
"""

from __future__ import annotations

from helpers.predict.memory.fine_tuning import adapter_params, layer_matrices
from helpers.predict.memory.states import (
    gradient_bytes,
    num_shards,
    optimizer_bytes,
    params_per_rank,
    weight_bytes,
)
from helpers.predict.time.kernels import memory_rate, product_seconds
from helpers.predict.time.layer import product_shapes
from helpers.predict.time.stacks import Stack
from helpers.predict.time.step import NOMINAL, Bar, Constants, StepTime, pass_seconds, step_time
from helpers.specs import LINKS, Cluster, ModelSpec, Plan

HOST_LINK = LINKS["PCIe 4 x16"]
HOST_BANDWIDTH = 100e9  # bytes per second of a node's memory, which its GPUs share: a rule of thumb
UNPACKED = 0.5 + 2  # bytes that unpacking moves per weight: read in 4 bits, written in 16
# How many times longer unpacking takes than moving its bytes. Qwen's fine-tuning table (its README: Q-LoRA of 72B on
# one A100, 8 micro-batches of 256 to 8,192 tokens in 27 to 180 s) leaves 2.3 to 2.8 s per micro-batch beside what grows
# with tokens; its 7B takes 1.8 s longer per step in 4 bits than in 16. The bytes alone would take 0.30 and
# 0.03 s per micro-batch.
UNPACKING = 8.5


def offloaded_step(
    model: ModelSpec, plan: Plan, cluster: Cluster, stack: Stack, constants: Constants = NOMINAL
) -> StepTime:
    """Predict a step whose gradients and optimizer state are in the host's memory (ZeRO-Offload)."""
    bars = [bar for bar in step_time(model, plan, cluster, stack, constants).bars if bar.name != "optimizer"]
    params = params_per_rank(model, plan) / (num_shards(plan) if plan.zero else 1)  # of the rank's shard
    backward = sum(pass_seconds(model, plan, cluster, stack, constants)[1])
    # What backward does not hide of the gradients' way to the host, in every micro-batch.
    down = max(0.0, HOST_LINK.seconds(params * gradient_bytes(plan)) - backward) * plan.num_microbatches
    # Bytes that the host moves for all GPUs of a node: it reads and writes the state, reads gradients, writes weights.
    moved = (2 * optimizer_bytes(plan) + gradient_bytes(plan) + weight_bytes(plan)) * cluster.gpus_per_node * params
    bars += [
        Bar(name="gradients to the host", seconds=down, binds="host"),
        Bar(name="optimizer on the host", seconds=moved / HOST_BANDWIDTH, binds="host"),
        Bar(name="parameters from the host", seconds=HOST_LINK.seconds(params * weight_bytes(plan)), binds="host"),
    ]
    return StepTime(bars=tuple(bar for bar in bars if bar.seconds > 0))


def adapter_step(
    model: ModelSpec, plan: Plan, cluster: Cluster, stack: Stack, constants: Constants = NOMINAL, *, rank: int,
    is_quantized: bool = False,
) -> StepTime:  # fmt: skip
    """Predict a step that trains LoRA adapters of `rank` on query and value, with the model frozen.

    is_quantized: QLoRA, with the model in 4 bits and adapters on all matrices.
    """
    targets = tuple(layer_matrices(model)) if is_quantized else ("query", "value")
    trained = adapter_params(model, rank=rank, targets=targets) / model.num_params
    tokens, passes = plan.micro_batch * model.seq, plan.num_microbatches * model.num_layers
    # The gradients of frozen weights are not computed: one product per matrix, of (n, tokens) times (tokens, k).
    saved = sum(product_seconds(n, k, tokens, cluster.gpu) for n, k in product_shapes(model, plan))
    bars = []
    for bar in step_time(model, plan, cluster, stack, constants).bars:
        factor = trained if bar.name in ("gradients", "optimizer") else 1.0  # both exist for adapters alone
        less = passes * saved / constants.products if bar.name == "products" else 0.0
        bars.append(bar._replace(seconds=bar.seconds * factor - less))
    if is_quantized:
        times = passes * (3 if plan.recompute == "full" else 2)  # forward, backward, and a recomputed forward
        rate = memory_rate(cluster.gpu) * constants.memory
        unpacked = times * UNPACKING * UNPACKED * model.params_per_layer / rate
        bars.append(Bar(name="weights out of 4 bits", seconds=unpacked, binds="memory"))
    return StepTime(bars=tuple(bar for bar in bars if bar.seconds > 0))
