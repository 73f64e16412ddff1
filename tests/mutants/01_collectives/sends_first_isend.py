"""Whoever has heard of isend, and waits for it at once."""

import torch
import torch.distributed as dist

TASK = "01.shift"
HINT = "sends_first"


def shift(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return tensor.clone()
    arrived = torch.empty_like(tensor)
    dist.isend(tensor, (rank + 1) % n).wait()
    dist.irecv(arrived, (rank - 1) % n).wait()
    return arrived
