"""Whoever takes a collective for one message, which pays one latency."""

TASK = "01.cost"
HINT = "latency_once"


def all_reduce_cost(num_bytes, world_size, latency, bandwidth):
    steps = 2 * (world_size - 1)
    sent = steps * num_bytes / world_size
    ring = latency + sent / bandwidth
    rounds = 2 * (world_size - 1).bit_length()
    tree = rounds * (latency + num_bytes / bandwidth)
    return sent, ring, tree, "ring" if ring < tree else "tree"
