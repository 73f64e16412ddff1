"""Whoever waits for what arrives, and forgets the sends."""

import torch
import torch.distributed as dist

TASK = "01.all_reduce"
HINT = "not_waited"


def all_reduce(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = torch.tensor_split(tensor, n)

    def exchange(leaving, buffer):
        dist.isend(leaving.clone(), (rank + 1) % n)
        dist.recv(buffer, (rank - 1) % n)

    for step in range(n - 1):
        arriving = chunks[(rank - 2 - step) % n]
        buffer = torch.empty_like(arriving)
        exchange(chunks[(rank - 1 - step) % n], buffer)
        arriving += buffer
    for step in range(n - 1):
        arriving = chunks[(rank - 1 - step) % n]
        buffer = torch.empty_like(arriving)
        exchange(chunks[(rank - step) % n], buffer)
        arriving.copy_(buffer)
