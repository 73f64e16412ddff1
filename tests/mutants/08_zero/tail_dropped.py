"""Whoever divides without thinking of the rest."""

import torch

TASK = "08.shard"
HINT = "tail_dropped"


def shard(tensors, rank, world_size):
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    length = len(flat) // world_size
    return flat[rank * length : (rank + 1) * length].clone()
