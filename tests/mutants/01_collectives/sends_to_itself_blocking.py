"""Whoever lets even ranks send first, and forgets one rank."""

import torch
import torch.distributed as dist

TASK = "01.shift"
HINT = "sends_to_itself"


def shift(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    arrived = torch.empty_like(tensor)
    if rank % 2 == 0:
        dist.send(tensor, (rank + 1) % n)
    dist.recv(arrived, (rank - 1) % n)
    if rank % 2 == 1:
        dist.send(tensor, (rank + 1) % n)
    return arrived
