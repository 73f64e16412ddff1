"""Whoever turns the two lines round, because sending first hung."""

import torch
import torch.distributed as dist

TASK = "01.shift"
HINT = "receives_first"


def shift(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return tensor.clone()
    arrived = torch.empty_like(tensor)
    dist.recv(arrived, (rank - 1) % n)
    dist.send(tensor, (rank + 1) % n)
    return arrived
