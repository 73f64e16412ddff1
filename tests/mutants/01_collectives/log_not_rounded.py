"""Whoever types log2 into a formula: 4.58 rounds on 24 ranks."""

import math

TASK = "01.cost"
HINT = "log_not_rounded"


def all_reduce_cost(num_bytes, world_size, latency, bandwidth):
    steps = 2 * (world_size - 1)
    sent = steps * num_bytes / world_size
    ring = steps * latency + sent / bandwidth
    rounds = 2 * math.log2(world_size)
    tree = rounds * (latency + num_bytes / bandwidth)
    return sent, ring, tree, "ring" if ring < tree else "tree"
