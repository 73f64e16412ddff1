"""Whoever deals out numbers as a sampler deals out examples."""

import torch
import torch.nn.functional as F

TASK = "08.shard"
HINT = "every_other_number"


def shard(tensors, rank, world_size):
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    flat = F.pad(flat, (0, -len(flat) % world_size))
    return flat[rank::world_size].clone()
