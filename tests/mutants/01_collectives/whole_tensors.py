"""Whoever passes the neighbour's whole tensor on, N - 1 times, and cuts at the end."""

import torch
import torch.distributed as dist

TASK = "01.reduce_scatter"
HINT = "whole_tensors"


def reduce_scatter(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    total, leaving = tensor.clone(), tensor
    for _ in range(n - 1):
        arriving = torch.empty_like(tensor)
        for work in [dist.isend(leaving, (rank + 1) % n), dist.irecv(arriving, (rank - 1) % n)]:
            work.wait()
        total += arriving
        leaving = arriving
    return torch.tensor_split(total, n)[rank]
