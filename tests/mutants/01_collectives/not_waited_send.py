"""Whoever waits for what comes, and not for what goes: the caller may change the tensor too early."""

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
    dist.recv(arrived, (rank - 1) % n)
    return arrived
