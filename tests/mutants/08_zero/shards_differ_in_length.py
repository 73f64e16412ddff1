"""Whoever lets chunk cut what the ranks do not divide: the last shard is shorter, or missing."""

import torch

TASK = "08.shard"
HINT = "shards_differ_in_length"


def shard(tensors, rank, world_size):
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    length = -(-len(flat) // world_size)
    return flat[rank * length : (rank + 1) * length].clone()
