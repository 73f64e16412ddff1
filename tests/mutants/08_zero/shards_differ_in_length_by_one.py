"""Whoever deals as fairly as numpy's array_split: the first shards are one longer."""

import torch

TASK = "08.shard"
HINT = "shards_differ_in_length"


def shard(tensors, rank, world_size):
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    return flat.tensor_split(world_size)[rank].clone()
