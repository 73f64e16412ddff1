"""Whoever pads by n - len % n, which is n and not 0 where nothing is missing."""

import torch
import torch.nn.functional as F

TASK = "08.shard"
HINT = "padded_where_even"


def shard(tensors, rank, world_size):
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    flat = F.pad(flat, (0, world_size - len(flat) % world_size))
    return flat.chunk(world_size)[rank].clone()
