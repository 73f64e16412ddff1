"""Collectives by size, kind and topology: measured rates inside a node, shared cards and hops between nodes.

Inside a node: bytes at the best rate that nccl-tests measured, and what a message costs beyond that (latency,
protocols, a pipeline that fills), read off the same tables for 8 GPUs and shared out by the hops of fewer. Between
nodes each ring that leaves a node has its share of the cards, and hops take NCCL's own constants: an all_gather or a
reduce_scatter goes round the ring of all ranks, an all_reduce may take a tree of nodes (NCCL 2, tuning.cc).
"""

from __future__ import annotations

from bisect import bisect
from functools import lru_cache
from math import log, log2

from helpers.quantities.costs import bus_factor
from helpers.specs import Cluster

MIB = 2**20
# all_reduce on 8 A100 (NVLink 3, 300 GB/s one way): bytes -> seconds, nccl-tests. On 8 H200 (NVLink 4, 450 GB/s): bytes
# -> bus bandwidth, nccl-tests; 482 GB/s at 16 GiB where the switch adds up (NVLS), 367.61 without.
A100_SECONDS = (
    (2**15, 43.83e-6), (2**18, 61.38e-6), (MIB, 101.9e-6), (4 * MIB, 101.5e-6), (16 * MIB, 276.6e-6),
    (64 * MIB, 684.6e-6), (256 * MIB, 2420.6e-6), (1024 * MIB, 8203.9e-6), (8192 * MIB, 64074e-6),
)  # fmt: skip
H200_RATES = ((MIB, 39.93e9), (16 * MIB, 219.89e9), (256 * MIB, 436.15e9), (1024 * MIB, 463.58e9))
BEST_A100 = 1.75 * 8192 * MIB / 64074e-6 / 300e9  # share of the link's one-way rate: 0.78
BEST_H200, NVLS_GAIN = 367.61e9 / 450e9, 482.26 / 367.61
FAST = 400e9  # of a link: NVLink 4 and later
# Seconds per hop and base, tuning.cc: (NVLink, network) for LL128, and for Simple, which large pieces take.
HOPS_LL128, HOPS_SIMPLE, BASE = (1.9e-6, 4.0e-6), (3.4e-6, 14.0e-6), 14e-6
LARGE_PIECE = 128 * 1024  # bytes per rank
CARD_SHARE = 0.95  # of a card's rate that payload reaches, beside the headers of packets; an assumption


def _beyond_rate(bandwidth: float) -> tuple[tuple[float, float], ...]:
    """bytes -> seconds that an all_reduce of 8 takes beyond its bytes at the best rate."""
    if bandwidth >= FAST:
        best = BEST_H200 * NVLS_GAIN * 450e9
        return tuple((size, 1.75 * size * max(0.0, 1 / rate - 1 / best)) for size, rate in H200_RATES)
    return tuple((size, max(0.0, took - 1.75 * size / (BEST_A100 * 300e9))) for size, took in A100_SECONDS)


TABLES = {True: _beyond_rate(450e9), False: _beyond_rate(300e9)}


@lru_cache(maxsize=16384)
def start_seconds(num_bytes: float, is_fast: bool) -> float:
    """What an all_reduce on 8 GPUs of a node takes beyond its bytes at the best rate, between the measured sizes."""
    table = TABLES[is_fast]
    sizes = [size for size, _ in table]
    place = bisect(sizes, num_bytes)
    if place in (0, len(sizes)):
        return table[0 if place == 0 else -1][1]
    (low, a), (high, b) = table[place - 1], table[place]
    return a + (b - a) * log(num_bytes / low) / log(high / low)


def best_rate(cluster: Cluster) -> float:
    """Bus bandwidth of long messages inside a node, bytes a second."""
    return cluster.intra.bandwidth * (BEST_H200 if cluster.intra.bandwidth >= FAST else BEST_A100)


@lru_cache(maxsize=65536)
def collective_seconds(
    op: str, num_bytes: float, ranks: int, cluster: Cluster, *, stride: int = 1, nvls: bool = False
) -> tuple[float, float]:
    """(seconds inside the node, seconds on the network) of one collective; one of them is 0.

    num_bytes: the whole buffer, as in nccl-tests. stride: ranks between neighbours of the group; the groups beside it
    share the node's cards. nvls: the node's switch adds up an all_reduce.
    """
    if ranks == 1 or not num_bytes:
        return 0.0, 0.0
    moved, is_sum = bus_factor(op, ranks) * num_bytes, op == "all_reduce"
    is_inside = ranks * stride <= cluster.gpus_per_node
    neighbours = ranks if is_inside else min(8, max(1, cluster.gpus_per_node // stride))
    start = start_seconds(num_bytes, cluster.intra.bandwidth >= FAST) * (neighbours - 1) / 7 / (1 if is_sum else 2)
    if is_inside:
        return start + moved / (best_rate(cluster) * (NVLS_GAIN if is_sum and nvls else 1.0)), 0.0
    link = cluster.link_for(ranks, stride=stride)
    if op == "all_to_all":  # no ring: every rank of a node sends what is for other nodes
        link, moved = cluster.network_for(cluster.gpus_per_node), (1 - neighbours / ranks) * num_bytes
    hops = hop_seconds(op, num_bytes, ranks, max(2, ranks * stride // cluster.gpus_per_node))
    return 0.0, BASE + start + hops + moved / min(CARD_SHARE * link.bandwidth, best_rate(cluster))


def hop_seconds(op: str, num_bytes: float, ranks: int, nodes: int) -> float:
    """Latency of a collective of `ranks` on `nodes`: round the ring once (twice for a sum), or up and down a tree."""
    inside, network = HOPS_SIMPLE if num_bytes / ranks > LARGE_PIECE else HOPS_LL128
    ring = (nodes - 1) * network + max(0, ranks - nodes) * inside
    if op != "all_reduce":
        return ring
    return min(2 * ring, 2 * (log2(nodes) * network + max(0, ranks // nodes - 1) * inside))


def send_seconds(num_bytes: float, cluster: Cluster, *, block: int, stages: int) -> tuple[float, float]:
    """(inside, network) of a send to the next stage; block: ranks between a rank and its peer."""
    if block * stages <= cluster.gpus_per_node:
        return BASE + num_bytes / best_rate(cluster), 0.0
    link = cluster.network_for(min(block, cluster.gpus_per_node))
    return 0.0, BASE + HOPS_LL128[1] + num_bytes / (CARD_SHARE * link.bandwidth)
