"""Whoever forgets to multiply: rank r begins at r."""

import torch
import torch.nn.functional as F

TASK = "08.shard"
HINT = "wrong_place"


def shard(tensors, rank, world_size):
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    flat = F.pad(flat, (0, -len(flat) % world_size))
    length = len(flat) // world_size
    return flat[rank : rank + length].clone()
