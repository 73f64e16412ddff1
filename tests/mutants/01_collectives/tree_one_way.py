"""Whoever takes the depth of the tree, and forgets that the sum has to come down again."""

TASK = "01.cost"
HINT = "tree_one_way"


def all_reduce_cost(num_bytes, world_size, latency, bandwidth):
    steps = 2 * (world_size - 1)
    sent = steps * num_bytes / world_size
    ring = steps * latency + sent / bandwidth
    rounds = (world_size - 1).bit_length()
    tree = rounds * (latency + num_bytes / bandwidth)
    return sent, ring, tree, "ring" if ring < tree else "tree"
