"""Whoever counts what crosses all links, when one rank is asked for."""

TASK = "01.cost"
HINT = "bytes_of_all_ranks"


def all_reduce_cost(num_bytes, world_size, latency, bandwidth):
    steps = 2 * (world_size - 1)
    sent = steps * num_bytes
    ring = steps * latency + sent / bandwidth
    rounds = 2 * (world_size - 1).bit_length()
    tree = rounds * (latency + num_bytes / bandwidth)
    return sent, ring, tree, "ring" if ring < tree else "tree"
