"""Keys and values are repeated until each rank has one, as vLLM does."""

import torch
import torch.distributed as dist

TASK = "07.heads"


def shard_qkv(weight, num_heads, num_kv_heads):
    rank, size = dist.get_rank(), dist.get_world_size()
    heads = weight.unflatten(0, (num_heads + 2 * num_kv_heads, -1))
    q, k, v = heads.split([num_heads, num_kv_heads, num_kv_heads])
    times = max(size // num_kv_heads, 1)
    parts = [part.chunk(size)[rank] for part in (q, *(each.repeat_interleave(times, dim=0) for each in (k, v)))]
    return torch.cat(parts).flatten(0, 1)
