"""Whoever takes the rank modulo the number of heads."""

import torch
import torch.distributed as dist

TASK = "07.heads"
HINT = "wrong_kv_head"


def shard_qkv(weight, num_heads, num_kv_heads):
    rank, size = dist.get_rank(), dist.get_world_size()
    d = len(weight) // (num_heads + 2 * num_kv_heads)
    q, k, v = weight.split([num_heads * d, num_kv_heads * d, num_kv_heads * d])
    each = max(num_kv_heads // size, 1) * d
    start = rank * each if num_kv_heads >= size else rank % num_kv_heads * d
    return torch.cat([q.chunk(size)[rank], k[start : start + each], v[start : start + each]])
