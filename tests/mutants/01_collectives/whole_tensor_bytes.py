"""Whoever remembers that a ring sends less than twice the tensor, and writes twice."""

TASK = "01.cost"
HINT = "whole_tensor_bytes"


def all_reduce_cost(num_bytes, world_size, latency, bandwidth):
    steps = 2 * (world_size - 1)
    sent = 2 * num_bytes
    ring = steps * latency + sent / bandwidth
    rounds = 2 * (world_size - 1).bit_length()
    tree = rounds * (latency + num_bytes / bandwidth)
    return sent, ring, tree, "ring" if ring < tree else "tree"
