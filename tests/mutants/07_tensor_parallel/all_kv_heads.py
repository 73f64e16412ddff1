"""Whoever keeps all keys and values on every rank, since they are small."""

import torch
import torch.distributed as dist

TASK = "07.heads"
HINT = "all_kv_heads"


def shard_qkv(weight, num_heads, num_kv_heads):
    rank, size = dist.get_rank(), dist.get_world_size()
    d = len(weight) // (num_heads + 2 * num_kv_heads)
    q, k, v = weight.split([num_heads * d, num_kv_heads * d, num_kv_heads * d])
    return torch.cat([q.chunk(size)[rank], k, v])
