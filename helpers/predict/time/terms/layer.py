"""A layer of one micro-batch on one rank, forward and backward: what it computes, moves, sends, at nominal rates.

Experts: the router sends as many tokens to each, so a rank's have top_k times its own tokens to work on, one product
after the other; what is sent there and back waits for nothing else, and nothing hides it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from helpers.predict.memory.states import gradient_bytes, kv_width
from helpers.predict.time.stacks import Stack
from helpers.predict.time.terms.attention import flash_seconds, materialized_seconds
from helpers.predict.time.terms.collectives import collective_seconds
from helpers.predict.time.terms.products import product_seconds
from helpers.specs import Cluster, ModelSpec, Plan

LOSS_BYTES = 14  # a logit, each way
CAST_BYTES = 5  # a number, from 16 bits to 8
CALLS_PER_EXPERT = 0.15  # of a layer's, for each further one on a rank: two or three of about twenty kernels


class Work(NamedTuple):
    """Seconds at nominal rates, which calibration divides by its constants. calls: kernels, in layers' forwards."""

    products: float = 0.0
    attention: float = 0.0
    memory: float = 0.0
    inside: float = 0.0  # collectives that wait for nothing else, on NVLink
    network: float = 0.0  # and between nodes
    routed: float = 0.0  # the all-to-alls of experts, on NVLink
    routed_network: float = 0.0  # and between nodes
    calls: float = 0.0


class Layer(NamedTuple):
    """again: of forward, what backward computes a second time."""

    forward: Work
    backward: Work
    again: Work


def shapes(model: ModelSpec, plan: Plan) -> tuple[tuple[int, int], ...]:
    """(columns, depth) of a layer's products of a rank: query, key, value; output; up and gate; down, of an expert."""
    h, f, tp = model.hidden, model.ffn, plan.tp
    return (h // tp + 2 * kv_width(model, plan), h), (h, h // tp), ((1 + model.gated) * f // tp, h), (h, f // tp)


@lru_cache(maxsize=16384)
def layer(model: ModelSpec, plan: Plan, cluster: Cluster, stack: Stack) -> Layer:
    """A layer under `plan`, of which tp, cp, micro_batch, attention, recompute, precision and the sequence count."""
    tokens = plan.micro_batch * model.seq // plan.cp
    gpu = cluster.gpu
    forward = backward = 0.0
    here = model.num_experts // plan.ep
    routed = max(1, tokens * model.top_k // here)  # to each expert
    for place, (n, k) in enumerate(shapes(model, plan)):
        rows, count = (tokens, 1) if place < 2 else (routed, here)
        forward += count * product_seconds(rows, n, k, gpu, fp8=plan.fp8)
        backward += count * sum(product_seconds(*one, gpu, fp8=plan.fp8) for one in ((rows, k, n), (n, k, rows)))
    core, core_back = _attention(model, plan, cluster, stack)
    bytes_, bytes_back = _bytes(model, plan, tokens, stack)
    rate = 0.85 * gpu.memory_bandwidth
    there, back = _sums(model, plan, tokens, cluster, stack)
    sent = _routed(model, plan, tokens, cluster)
    calls = 1 + stack.calls_per_collective * (plan.tp - 1) + CALLS_PER_EXPERT * (here - 1)
    ahead = Work(forward, core[0], bytes_ / rate + core[1], *there, *sent, calls)
    behind = Work(backward, core_back[0], bytes_back / rate + core_back[1], *back, *sent, stack.calls_backward * calls)
    again = Work()
    if plan.recompute == "full":
        again = ahead
    elif plan.recompute == "selective":
        again = Work(stack.selective_products * forward, core[0] * (not stack.selective_products), core[1])
    return Layer(ahead, behind, again)


def _attention(model: ModelSpec, plan: Plan, cluster: Cluster, stack: Stack):
    """(products, bytes) of forward and backward of attention's core."""
    heads = model.num_heads // plan.tp
    if (stack.attention or plan.attention) == "materialized":
        seq = model.seq // plan.cp
        batch = plan.micro_batch * plan.cp  # the rows of a rank meet the keys of all
        return materialized_seconds(batch, seq, heads, model.head_dim, cluster.gpu)
    tokens, share = plan.micro_batch * model.seq // plan.cp, model.seen / model.seq
    context = model.seen * (2 - share)  # twice what a token of a sequence sees on average
    forward, backward = flash_seconds(tokens, context, heads * model.head_dim, cluster.gpu)
    return (forward / stack.flash, 0.0), (backward / stack.flash, 0.0)


def _bytes(model: ModelSpec, plan: Plan, tokens: int, stack: Stack) -> tuple[float, float]:
    """Bytes that norms, activations, residuals and dropout move, forward and backward; and gradients that add up.

    In 16 bits a tensor of one hidden width is 2 h bytes a token. Two norms read and write it (8 h), two residuals read
    two and write one, with dropout's mask (14 h); GeLU reads and writes f (4 f), a gated one three of them (6 f);
    rotary positions or transposes of heads read and write query and key (8 h). Sequence parallelism splits the first.
    Experts have top_k times f, and their inputs and results are put in order and back (8 h each).
    """
    h, f, tp = model.hidden, model.top_k * model.ffn, plan.tp
    params = model.params_per_layer - (1 - 1 / plan.ep) * model.num_experts * model.params_per_expert
    whole = (8 + 14 if model.norm == "layer" else 8 + 12) * h / (tp if plan.sequence_parallel else 1)
    split = ((6 if model.gated else 4) * f + 8 * h) / tp
    if model.num_experts > 1:
        split += 8 * model.top_k * h / tp
    forward = tokens * (whole + split) * stack.passes
    backward = 1.6 * forward + _added_bytes(plan) * params / tp
    if plan.fp8:  # what a product takes is read for its largest value, read again and written in 8 bits
        inputs = tokens * (2 * h + (h + f) / tp) + params / tp
        forward, backward = forward + CAST_BYTES * inputs, backward + CAST_BYTES * inputs
    return forward, backward


def _routed(model: ModelSpec, plan: Plan, tokens: int, cluster: Cluster) -> tuple[float, float]:
    """Dispatch and combine, (inside, network): a tensor rank carries its part of each token's top_k copies."""
    size = 2 * tokens * model.top_k * model.hidden / plan.tp
    return tuple(2 * took for took in collective_seconds("all_to_all", size, plan.ep, cluster, stride=plan.tp))


def _sums(model: ModelSpec, plan: Plan, tokens: int, cluster: Cluster, stack: Stack):
    """Exposed collectives of tensor and context parallelism, (inside, network), of forward and of backward."""
    size = 2 * tokens * model.hidden
    ops = ("all_gather", "reduce_scatter") if plan.sequence_parallel else ("all_reduce",)
    pair = [collective_seconds(op, size, plan.tp, cluster, nvls=stack.nvls) for op in ops]
    inside, network = (2 * sum(part) * (1 - stack.tensor_hidden) for part in zip(*pair, strict=True))
    if plan.cp > 1:  # keys and values of the others, and in backward their gradients too
        kv = 2 * 2 * tokens * model.kv_heads * model.head_dim // plan.tp * plan.cp
        ring = collective_seconds("all_gather", kv, plan.cp, cluster, stride=plan.tp)
        inside, network = inside + ring[0] * (1 - stack.context_hidden), network + ring[1] * (1 - stack.context_hidden)
        return (inside, network), (2 * inside, 2 * network)
    return (inside, network), (inside * stack.tensor_backward, network * stack.tensor_backward)


class Ends(NamedTuple):
    """What the first and the last stage do beside layers: (forward, backward) of each."""

    embedding: tuple[Work, Work]
    head: tuple[Work, Work]


@lru_cache(maxsize=4096)
def ends(model: ModelSpec, plan: Plan, cluster: Cluster, stack: Stack) -> Ends:
    """The table's rows, and logits with their loss in fp32: written, cast, normalised, and the same way back."""
    tokens, gpu = plan.micro_batch * model.seq // plan.cp, cluster.gpu
    rate = 0.85 * gpu.memory_bandwidth
    columns, depth = model.vocab // plan.tp, model.hidden
    added = _added_bytes(plan) * columns * depth / rate
    loss = LOSS_BYTES * stack.passes * tokens * columns / rate
    forward = product_seconds(tokens, columns, depth, gpu)  # in 16 bits under fp8 too
    backward = product_seconds(tokens, depth, columns, gpu) + product_seconds(columns, depth, tokens, gpu)
    head = Work(forward, memory=loss, calls=1), Work(backward, memory=loss + added, calls=1)
    moved = 6 * tokens * depth / rate
    return Ends((Work(memory=moved, calls=0.2), Work(memory=moved + added, calls=0.2)), head)


def _added_bytes(plan: Plan) -> int:
    """Bytes a parameter to add a micro-batch's gradient to the sum: fp32 read and written, or 16 bits read twice."""
    return (8 if gradient_bytes(plan) >= 4 else 6) * (plan.num_microbatches > 1)
