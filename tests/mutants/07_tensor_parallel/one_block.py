"""Whoever cuts the fused weight like any other, in equal blocks of rows."""

import torch.distributed as dist

TASK = "07.heads"
HINT = "one_block"


def shard_qkv(weight, num_heads, num_kv_heads):
    rank, size = dist.get_rank(), dist.get_world_size()
    each = len(weight) // size
    return weight[rank * each : (rank + 1) * each]
