"""Whoever collects head after head, as Megatron's own layout does."""

import torch
import torch.distributed as dist

TASK = "07.heads"
HINT = "head_by_head"


def shard_qkv(weight, num_heads, num_kv_heads):
    rank, size = dist.get_rank(), dist.get_world_size()
    d = len(weight) // (num_heads + 2 * num_kv_heads)
    q, k, v = weight.split([num_heads * d, num_kv_heads * d, num_kv_heads * d])
    each = max(num_kv_heads // size, 1) * d
    start = rank * num_kv_heads // size * d
    groups = q.chunk(size)[rank].chunk(each // d)
    keys, values = k[start : start + each].split(d), v[start : start + each].split(d)
    return torch.cat([part for group in zip(groups, keys, values, strict=True) for part in group])
