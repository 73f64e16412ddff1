"""Whoever deals heads out, one to each rank in turn."""

import torch
import torch.distributed as dist

TASK = "07.heads"
HINT = "heads_dealt_out"


def shard_qkv(weight, num_heads, num_kv_heads):
    rank, size = dist.get_rank(), dist.get_world_size()
    d = len(weight) // (num_heads + 2 * num_kv_heads)
    q, k, v = weight.split([num_heads * d, num_kv_heads * d, num_kv_heads * d])
    q, k, v = (part.unflatten(0, (-1, d)) for part in (q, k, v))
    mine = slice(rank, None, size) if num_kv_heads >= size else slice(rank * num_kv_heads // size, None)
    k, v = (part[mine][: max(num_kv_heads // size, 1)] for part in (k, v))
    return torch.cat([part.flatten(0, 1) for part in (q[rank::size], k, v)])
