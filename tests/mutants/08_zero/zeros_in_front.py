"""Whoever mixes up the two numbers of F.pad: the first is for the beginning."""

import torch
import torch.nn.functional as F

TASK = "08.shard"
HINT = "zeros_in_front"


def shard(tensors, rank, world_size):
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    flat = F.pad(flat, (-len(flat) % world_size, 0))
    return flat.chunk(world_size)[rank].clone()
