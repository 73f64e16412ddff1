"""Predicts the seconds of collectives by size, kind and topology, and the traffic between data-parallel replicas.

layer.py, step.py and convolutions.py add them up. `collective_seconds` and `send_seconds` return seconds inside a node
and on the network separately. `replica_traffic` lists what a plan sends between replicas for gradients and parameters.
Bus bandwidth is nccl-tests' measure: the bytes that a ring sends per rank, over the time. A hop is one step of a
message from one rank to the next.

Inside a node: the bytes at the best rate that nccl-tests measured, plus what a message costs beyond that (latency,
protocols, a pipeline that fills), read off the same tables for 8 GPUs and divided by the hops where there are fewer.
Between nodes: each ring that leaves a node gets its share of the network cards, and hops take NCCL's own constants. An
all_gather or a reduce_scatter passes the ring of all ranks; an all_reduce may take a tree of nodes (NCCL 2, tuning.cc).
"""

from __future__ import annotations

from bisect import bisect
from functools import lru_cache
from math import log, log2
from typing import NamedTuple

from helpers.predict.memory.states import gradient_bytes, num_shards, optimizer_bytes, weight_bytes
from helpers.predict.time.kernels import memory_rate
from helpers.predict.time.stacks import Stack
from helpers.quantities.costs import bus_factor
from helpers.specs import Cluster, Plan

MIB = 2**20
# Measured by nccl-tests. all_reduce on 8 A100 (NVLink 3, 300 GB/s one way): (bytes, seconds).
A100_SECONDS = (
    (2**15, 43.83e-6), (2**18, 61.38e-6), (MIB, 101.9e-6), (4 * MIB, 101.5e-6), (16 * MIB, 276.6e-6),
    (64 * MIB, 684.6e-6), (256 * MIB, 2420.6e-6), (1024 * MIB, 8203.9e-6), (8192 * MIB, 64074e-6),
)  # fmt: skip
# The same on 8 H200 (NVLink 4, 450 GB/s one way), with NVLS, where the switch adds up: (bytes, bus bandwidth in bytes
# per second).
H200_RATES = ((MIB, 39.93e9), (16 * MIB, 219.89e9), (256 * MIB, 436.15e9), (1024 * MIB, 463.58e9))
RING_OF_8 = 2 * 7 / 8  # bytes that a rank of 8 sends in a ring all_reduce, over the bytes of the buffer
# Bus bandwidth of long messages over the link's one-way rate, without NVLS: 0.78 and 0.82. On H200, NVLS reaches
# 482.26 GB/s at 16 GiB instead of 367.61.
BEST_A100 = RING_OF_8 * 8192 * MIB / 64074e-6 / 300e9
BEST_H200, NVLS_GAIN = 367.61e9 / 450e9, 482.26 / 367.61
# The same on 8 B200, of an all_gather: github.com/MooreThreads/SimuMax, configs/system/b200_bf16_ceperm.json.
BEST_B200 = 0.67
FAST, FASTEST = 400e9, 900e9  # bytes per second of a link: NVLink 4, and NVLink 5, are at least this fast
# NCCL's latencies in seconds, from its tuning.cc. Per hop, as (NVLink, network), for its protocols LL128 and Simple, of
# which Simple carries large pieces; and once per collective (BASE).
HOPS_LL128, HOPS_SIMPLE, BASE = (1.9e-6, 4.0e-6), (3.4e-6, 14.0e-6), 14e-6
LARGE_PIECE = 128 * 1024  # bytes; a piece is the part of the buffer that belongs to one rank, large if it is above this
CARD_SHARE = 0.95  # the share of a card's rate that payload reaches, because packets have headers; an assumption


def _beyond_rate(bandwidth: float) -> tuple[tuple[float, float], ...]:
    """(bytes, seconds) by which an all_reduce of 8 GPUs takes longer than its bytes at the best rate."""
    if bandwidth >= FAST:
        best = BEST_H200 * NVLS_GAIN * 450e9  # bytes per second of long messages with NVLS, as in the table
        return tuple((size, RING_OF_8 * size * max(0.0, 1 / rate - 1 / best)) for size, rate in H200_RATES)
    return tuple((size, max(0.0, took - RING_OF_8 * size / (BEST_A100 * 300e9))) for size, took in A100_SECONDS)


TABLES = {True: _beyond_rate(450e9), False: _beyond_rate(300e9)}  # for links that are FAST, and for slower ones


@lru_cache(maxsize=16384)
def start_seconds(num_bytes: float, is_fast: bool) -> float:
    """Seconds by which an all_reduce on 8 GPUs of a node takes longer than its bytes at the best rate.

    It interpolates between the measured sizes, on a logarithmic scale.
    """
    table = TABLES[is_fast]
    sizes = [size for size, _ in table]
    index = bisect(sizes, num_bytes)
    if index == 0:
        return table[0][1]
    if index == len(sizes):
        return table[-1][1]
    (low, at_low), (high, at_high) = table[index - 1], table[index]
    return at_low + (at_high - at_low) * log(num_bytes / low) / log(high / low)


def best_rate(cluster: Cluster) -> float:
    """Bus bandwidth of long messages inside a node, in bytes per second."""
    bandwidth = cluster.intra.bandwidth
    return bandwidth * (BEST_B200 if bandwidth >= FASTEST else BEST_H200 if bandwidth >= FAST else BEST_A100)


@lru_cache(maxsize=65536)
def collective_seconds(
    op: str, num_bytes: float, ranks: int, cluster: Cluster, *, stride: int = 1, nvls: bool = False
) -> tuple[float, float]:
    """(seconds inside the node, seconds on the network) of one collective; one of the two is 0.

    num_bytes: the full buffer, as in nccl-tests. stride: ranks between neighbours of the group; the groups beside it
    share the node's network cards. nvls: the node's switch adds up an all_reduce.
    """
    if ranks == 1 or not num_bytes:
        return 0.0, 0.0
    # moved: the bytes that a rank sends. is_sum: whether the switch can add up, and the ring is passed twice.
    moved, is_sum = bus_factor(op, ranks) * num_bytes, op == "all_reduce"
    is_inside = ranks * stride <= cluster.gpus_per_node
    neighbours = ranks if is_inside else min(8, max(1, cluster.gpus_per_node // stride))  # of the group, in one node
    # The table is of an all_reduce on 8 GPUs, which has 7 hops, so `neighbours` stops at 8 in larger nodes, too. The
    # other collectives pass the ring once, not twice.
    start = start_seconds(num_bytes, cluster.intra.bandwidth >= FAST) * (neighbours - 1) / 7 / (1 if is_sum else 2)
    if is_inside:
        return start + moved / (best_rate(cluster) * (NVLS_GAIN if is_sum and nvls else 1.0)), 0.0
    link = cluster.link_for(ranks, stride=stride)
    if op == "all_to_all":  # no ring: every rank of a node sends what is for other nodes
        link, moved = cluster.network_for(cluster.gpus_per_node), (1 - neighbours / ranks) * num_bytes
    hops = hop_seconds(op, num_bytes, ranks, max(2, ranks * stride // cluster.gpus_per_node))  # the last: the nodes
    return 0.0, BASE + start + hops + moved / min(CARD_SHARE * link.bandwidth, best_rate(cluster))


def hop_seconds(op: str, num_bytes: float, ranks: int, nodes: int) -> float:
    """Seconds of latency of a collective of `ranks` ranks on `nodes` nodes.

    A message passes the ring once. An all_reduce passes it twice, or goes up and down a tree if that is faster.
    """
    inside, network = HOPS_SIMPLE if num_bytes / ranks > LARGE_PIECE else HOPS_LL128  # seconds per hop
    ring = (nodes - 1) * network + max(0, ranks - nodes) * inside
    if op != "all_reduce":
        return ring
    return min(2 * ring, 2 * (log2(nodes) * network + max(0, ranks // nodes - 1) * inside))


def send_seconds(num_bytes: float, cluster: Cluster, *, block: int, stages: int) -> tuple[float, float]:
    """(inside the node, network) seconds of a send to the next pipeline stage.

    block: by how many ranks a rank and its peer on the next stage differ. stages: stages of the pipeline.
    """
    if block * stages <= cluster.gpus_per_node:
        return BASE + num_bytes / best_rate(cluster), 0.0
    link = cluster.network_for(min(block, cluster.gpus_per_node))  # so many ranks of a node send at the same time
    return 0.0, BASE + HOPS_LL128[1] + num_bytes / (CARD_SHARE * link.bandwidth)


class ReplicaTraffic(NamedTuple):
    """One kind of traffic between replicas, such as the reduce-scatter of gradients.

    inside, network: seconds of each time, inside a node and between nodes. often: how many times it comes per step.
    hidden: the share that compute may hide, at most as long as the pass `behind` ("forward" or "backward") takes.
    """

    name: str
    inside: float
    network: float
    often: int
    hidden: float
    behind: str


def replica_traffic(params: float, layers: int, plan: Plan, cluster: Cluster, stack: Stack) -> list[ReplicaTraffic]:
    """All traffic between replicas of a rank that has `params` parameters (before ZeRO) in `layers` layers.

    ZeRO-3 gathers layer by layer, in as many messages per layer as the stack makes. Hybrid sharding (plan.shard_ranks)
    gathers among those ranks alone, and adds gradients up over the groups once per step.
    """
    replicas, often = plan.dp * plan.cp, plan.num_microbatches
    if replicas == 1:
        return []
    # Bytes that travel. With mixed_both_grads a rank has 2 + 4 bytes of gradients, but only the 4 of fp32 travel.
    gradients, weights = params * min(4, gradient_bytes(plan)), params * weight_bytes(plan)
    shards = num_shards(plan)  # ranks over which ZeRO shards
    pieces = layers * stack.messages if plan.zero == 3 else 1  # messages into which the parameters are divided

    def traffic(
        name: str, op: str, size: float, often: int, hidden: float, behind: str, ranks: int, stride: int
    ) -> ReplicaTraffic:
        """One entry. size: bytes of all pieces together. ranks, stride: the group, and the distance of its ranks."""
        inside, network = collective_seconds(op, size / pieces, ranks, cluster, stride=stride)
        return ReplicaTraffic(name, pieces * inside, pieces * network, often, hidden, behind)

    # plan.tp, the last argument below, is the distance between replicas.
    def reduce(often: int) -> ReplicaTraffic:
        return traffic("gradients", "reduce_scatter", gradients, often, stack.data_hidden, "backward", shards, plan.tp)

    def gather(name: str, often: int, behind: str) -> ReplicaTraffic:
        return traffic(name, "all_gather", weights, often, stack.gather_hidden, behind, shards, plan.tp)

    if plan.zero == 0:
        return [traffic("gradients", "all_reduce", gradients, 1, stack.data_hidden, "backward", replicas, plan.tp)]
    if plan.zero < 3:
        return [reduce(1 if plan.zero == 1 else often), gather("parameters", 1, "forward")]
    sharded = [gather("parameters", often, "forward"), gather("parameters, backward", often, "backward"), reduce(often)]
    if shards < replicas:
        # Each group of `shards` ranks has all parameters, so rank i of one group adds up with rank i of the others.
        # The tuple has the arguments of `traffic` from `size` on.
        between = (gradients / shards, 1, stack.data_hidden, "backward", replicas // shards, plan.tp * shards)
        sharded.append(traffic("gradients between groups", "all_reduce", *between))
    return sharded


def optimizer_seconds(params: float, plan: Plan, cluster: Cluster) -> float:
    """Seconds of the optimizer's step, which memory limits.

    For each parameter of its shard a rank reads and writes the state (AdamW's fp32 master and two moments: 24 bytes),
    reads the gradient twice, for the norm and for the step (8), and copies and zeroes it (4): 36 bytes with AdamW. For
    each of its `params` parameters it moves 4 bytes more.
    """
    sharded = params / (num_shards(plan) if plan.zero else 1)
    return ((2 * optimizer_bytes(plan) + 12) * sharded + 4 * params) / memory_rate(cluster.gpu)


def tokens_that_hide(cluster: Cluster, efficiency: float = 0.4, *, dtype_bytes: int = 2) -> float:
    """Tokens of a rank's micro-batch from which on ZeRO-3's traffic between nodes hides behind its compute.

    A micro-batch of T tokens takes 6 N T / F seconds (F: operations per second that a GPU reaches, `efficiency` of its
    peak), and ZeRO-3 sends the N parameters three times in 16 bits, 6 N / B seconds (B: bytes per second of a node's
    whole network, which a flat ring crosses once). Equal at T = F / B, whatever the model: 2 N T / F forward against
    2 N / B, 4 N T / F backward against 4 N / B. The same T hides DDP's all-reduce, 4 N / B, behind one backward pass.
    On one node B is a GPU's own link. dtype_bytes: of what travels. Attention's own products and latency are left out.
    """
    link = cluster.link_for(cluster.world_size)
    return dtype_bytes / 2 * efficiency * cluster.gpu.flops / link.bandwidth
