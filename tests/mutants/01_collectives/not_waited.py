"""Whoever takes irecv for a receive: the buffer is returned before anything is in it."""

import torch
import torch.distributed as dist

TASK = "01.shift"
HINT = "not_waited"


def shift(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return tensor.clone()
    arrived = torch.zeros_like(tensor)
    dist.isend(tensor, (rank + 1) % n)
    dist.irecv(arrived, (rank - 1) % n)
    return arrived
