"""Whoever cuts log2 off, which is right for powers of two only."""

import math

TASK = "01.cost"
HINT = "log_not_rounded"


def all_reduce_cost(num_bytes, world_size, latency, bandwidth):
    steps = 2 * (world_size - 1)
    sent = steps * num_bytes / world_size
    ring = steps * latency + sent / bandwidth
    rounds = 2 * int(math.log2(world_size))
    tree = rounds * (latency + num_bytes / bandwidth)
    return sent, ring, tree, "ring" if ring < tree else "tree"
