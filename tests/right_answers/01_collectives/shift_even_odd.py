"""Blocking calls: even ranks send first, odd ones receive first. Works for odd numbers of ranks too."""

import torch.distributed as dist

TASK = "01.shift"


def shift(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    arrived = tensor.clone()
    if n > 1 and rank % 2 == 0:
        dist.send(tensor, (rank + 1) % n)
    if n > 1:
        dist.recv(arrived, (rank - 1) % n)
    if n > 1 and rank % 2 == 1:
        dist.send(tensor, (rank + 1) % n)
    return arrived
