"""Whoever forgets one rank, whose neighbours are itself."""

import torch
import torch.distributed as dist

TASK = "01.shift"
HINT = "sends_to_itself"


def shift(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    arrived = torch.empty_like(tensor)
    for work in [dist.isend(tensor, (rank + 1) % n), dist.irecv(arrived, (rank - 1) % n)]:
        work.wait()
    return arrived
