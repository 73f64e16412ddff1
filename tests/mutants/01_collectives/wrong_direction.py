"""Whoever mixes up left and right."""

import torch
import torch.distributed as dist

TASK = "01.shift"
HINT = "wrong_direction"


def shift(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return tensor.clone()
    arrived = torch.empty_like(tensor)
    for work in [dist.isend(tensor, (rank - 1) % n), dist.irecv(arrived, (rank + 1) % n)]:
        work.wait()
    return arrived
