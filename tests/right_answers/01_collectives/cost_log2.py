"""Rounds from math.log2, rounded up."""

import math

TASK = "01.cost"


def all_reduce_cost(num_bytes, world_size, latency, bandwidth):
    steps = 2 * (world_size - 1)
    sent = 2 * num_bytes * (1 - 1 / world_size)
    ring = steps * latency + sent / bandwidth
    rounds = 2 * math.ceil(math.log2(world_size))
    tree = rounds * (latency + num_bytes / bandwidth)
    return sent, ring, tree, "ring" if ring < tree else "tree"
