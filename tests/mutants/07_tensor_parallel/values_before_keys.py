"""Whoever has the order of another model in mind."""

import torch
import torch.distributed as dist

TASK = "07.heads"
HINT = "values_before_keys"


def shard_qkv(weight, num_heads, num_kv_heads):
    rank, size = dist.get_rank(), dist.get_world_size()
    d = len(weight) // (num_heads + 2 * num_kv_heads)
    q, k, v = weight.split([num_heads * d, num_kv_heads * d, num_kv_heads * d])
    each = max(num_kv_heads // size, 1) * d
    start = rank * num_kv_heads // size * d
    return torch.cat([q.chunk(size)[rank], v[start : start + each], k[start : start + each]])
