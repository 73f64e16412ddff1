"""Whoever loops over the others, and leaves the own place empty."""

import torch
import torch.distributed as dist

TASK = "01.all_to_all"
HINT = "own_part_missing"


def all_to_all(tensors):
    rank, n = dist.get_rank(), dist.get_world_size()
    result = [torch.zeros_like(tensor) for tensor in tensors]
    for step in range(1, n):
        to, source = (rank + step) % n, (rank - step) % n
        for work in [dist.isend(tensors[to], to), dist.irecv(result[source], source)]:
            work.wait()
    return result
