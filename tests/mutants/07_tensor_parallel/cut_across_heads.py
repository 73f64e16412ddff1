"""Whoever cuts keys and values into n blocks, also where there are fewer heads than ranks."""

import torch
import torch.distributed as dist

TASK = "07.heads"
HINT = "cut_across_heads"


def shard_qkv(weight, num_heads, num_kv_heads):
    rank, size = dist.get_rank(), dist.get_world_size()
    d = len(weight) // (num_heads + 2 * num_kv_heads)
    q, k, v = weight.split([num_heads * d, num_kv_heads * d, num_kv_heads * d])
    return torch.cat([part.chunk(size)[rank] for part in (q, k, v)])
