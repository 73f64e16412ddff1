"""Gradients and parameters between replicas, once a step or (ZeRO-2 and 3) once a micro-batch, and the optimizer."""

from __future__ import annotations

from typing import NamedTuple

from helpers.predict.memory.states import gradient_bytes, num_shards, optimizer_bytes, weight_bytes
from helpers.predict.time.stacks import Stack
from helpers.predict.time.terms.collectives import collective_seconds
from helpers.specs import Cluster, Plan


class Flow(NamedTuple):
    """One kind of traffic: (inside, network) seconds of one time; how often in a step; the share that compute of the

    pass `behind` may cover, as far as that pass lasts.
    """

    name: str
    inside: float
    network: float
    often: int
    hidden: float
    behind: str


def flows(params: float, layers: int, plan: Plan, cluster: Cluster, stack: Stack) -> list[Flow]:
    """Traffic of a rank that holds `params` parameters (before ZeRO) in `layers` layers.

    ZeRO-3 gathers layer by layer, in the messages that the stack makes of a layer. Hybrid sharding (plan.shard_ranks)
    gathers among those ranks alone, and sums the rest of the way once a step.
    """
    replicas, often = plan.dp * plan.cp, plan.num_microbatches
    if replicas == 1:
        return []
    gradients, weights = params * min(4, gradient_bytes(plan)), params * weight_bytes(plan)
    shards = num_shards(plan)
    pieces = layers * stack.messages if plan.zero == 3 else 1

    def flow(name: str, op: str, size: float, often: int, hidden: float, behind: str, ranks: int, stride: int) -> Flow:
        one = collective_seconds(op, size / pieces, ranks, cluster, stride=stride)
        return Flow(name, pieces * one[0], pieces * one[1], often, hidden, behind)

    def reduce(often: int) -> Flow:
        return flow("gradients", "reduce_scatter", gradients, often, stack.data_hidden, "backward", shards, plan.tp)

    def gather(name: str, often: int, behind: str) -> Flow:
        return flow(name, "all_gather", weights, often, stack.gather_hidden, behind, shards, plan.tp)

    if plan.zero == 0:
        return [flow("gradients", "all_reduce", gradients, 1, stack.data_hidden, "backward", replicas, plan.tp)]
    if plan.zero < 3:
        return [reduce(1 if plan.zero == 1 else often), gather("parameters", 1, "forward")]
    found = [gather("parameters", often, "forward"), gather("parameters, backward", often, "backward"), reduce(often)]
    if shards < replicas:
        rest = (gradients / shards, 1, stack.data_hidden, "backward", replicas // shards, plan.tp * shards)
        found.append(flow("gradients between groups", "all_reduce", *rest))
    return found


def optimizer_seconds(params: float, plan: Plan, cluster: Cluster) -> float:
    """The optimizer reads and writes its state (AdamW's fp32 master and two moments: 24 bytes a parameter), reads

    gradients twice, for their norm and for the step (8), copies and zeroes them (4): with AdamW 36 bytes of what a rank
    keeps, and 4 of what it holds.
    """
    held = params / (num_shards(plan) if plan.zero else 1)
    return ((2 * optimizer_bytes(plan) + 12) * held + 4 * params) / (0.85 * cluster.gpu.memory_bandwidth)


def tokens_that_hide(cluster: Cluster, efficiency: float = 0.4, *, dtype_bytes: int = 2) -> float:
    """Tokens of a rank's micro-batch from which on ZeRO-3's traffic between nodes hides behind its compute.

    A micro-batch of T tokens takes 6 N T / F seconds (F: operations a second that a GPU reaches, `efficiency` of its
    peak), and ZeRO-3 sends the N parameters three times in 16 bits, 6 N / B seconds (B: bytes a second of a node's
    whole network, which a flat ring crosses once). Equal at T = F / B, whatever the model: 2 N T / F forward against
    2 N / B, 4 N T / F backward against 4 N / B. The same T hides DDP's all-reduce, 4 N / B, behind one backward pass.
    On one node B is a GPU's own link. dtype_bytes: of what travels. Attention's own products and latency are left out.
    """
    link = cluster.link_for(cluster.world_size)
    return dtype_bytes / 2 * efficiency * cluster.gpu.flops / link.bandwidth
