"""Whoever knows attention without grouped queries, where the three are of one size."""

import torch
import torch.distributed as dist

TASK = "07.heads"
HINT = "thirds"


def shard_qkv(weight, num_heads, num_kv_heads):
    rank, size = dist.get_rank(), dist.get_world_size()
    return torch.cat([part.chunk(size)[rank] for part in weight.chunk(3)])
