"""Whoever counts the own chunk as a step, in both phases."""

import torch
import torch.distributed as dist

TASK = "01.all_reduce"
HINT = "one_step_short"


def all_reduce(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = torch.tensor_split(tensor, n)

    def exchange(leaving, buffer):
        for work in [dist.isend(leaving, (rank + 1) % n), dist.irecv(buffer, (rank - 1) % n)]:
            work.wait()

    for step in range(n - 2):
        arriving = chunks[(rank - 2 - step) % n]
        buffer = torch.empty_like(arriving)
        exchange(chunks[(rank - 1 - step) % n], buffer)
        arriving += buffer
    for step in range(n - 2):
        arriving = chunks[(rank - 1 - step) % n]
        buffer = torch.empty_like(arriving)
        exchange(chunks[(rank - step) % n], buffer)
        arriving.copy_(buffer)
