"""Whoever stops when the sums are finished: each rank has one chunk of them."""

import torch
import torch.distributed as dist

TASK = "01.all_reduce"
HINT = "no_all_gather"


def all_reduce(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = torch.tensor_split(tensor, n)

    def exchange(leaving, buffer):
        for work in [dist.isend(leaving, (rank + 1) % n), dist.irecv(buffer, (rank - 1) % n)]:
            work.wait()

    for step in range(n - 1):
        arriving = chunks[(rank - 2 - step) % n]
        buffer = torch.empty_like(arriving)
        exchange(chunks[(rank - 1 - step) % n], buffer)
        arriving += buffer
