"""Whoever has FSDP2 in mind, which cuts each parameter by itself."""

import torch
import torch.nn.functional as F

TASK = "08.shard"
HINT = "each_tensor_cut"


def shard(tensors, rank, world_size):
    parts = []
    for tensor in tensors:
        flat = F.pad(tensor.flatten(), (0, -tensor.numel() % world_size))
        parts.append(flat.chunk(world_size)[rank])
    return torch.cat(parts)
