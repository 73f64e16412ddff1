"""Whoever hands out a slice: it looks like a shard and keeps everything."""

import torch
import torch.nn.functional as F

TASK = "08.shard"
HINT = "view_of_the_whole"


def shard(tensors, rank, world_size):
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    flat = F.pad(flat, (0, -len(flat) % world_size))
    return flat.chunk(world_size)[rank]
