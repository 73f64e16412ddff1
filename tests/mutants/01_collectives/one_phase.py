"""Whoever stops after the reduce-scatter."""

TASK = "01.cost"
HINT = "one_phase"


def all_reduce_cost(num_bytes, world_size, latency, bandwidth):
    steps = world_size - 1
    sent = steps * num_bytes / world_size
    ring = steps * latency + sent / bandwidth
    rounds = 2 * (world_size - 1).bit_length()
    tree = rounds * (latency + num_bytes / bandwidth)
    return sent, ring, tree, "ring" if ring < tree else "tree"
