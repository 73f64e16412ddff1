"""From the table of the chapter."""

TASK = "01.cost"


def all_reduce_cost(num_bytes, world_size, latency, bandwidth):
    steps = 2 * (world_size - 1)
    sent = steps * num_bytes / world_size
    ring = steps * latency + sent / bandwidth
    rounds = 2 * (world_size - 1).bit_length()
    tree = rounds * (latency + num_bytes / bandwidth)
    return sent, ring, tree, "ring" if ring < tree else "tree"
