"""Lists of parts in place of one tensor, and the division before the message."""

import torch
import torch.distributed as dist

TASK = "08.zero1_step"


def zero1_step(flat, shard, step):
    n = dist.get_world_size()
    mine = torch.empty_like(shard)
    dist.reduce_scatter(mine, list((flat / n).chunk(n)))
    step(shard, mine)
    dist.all_gather(list(flat.chunk(n)), shard)
