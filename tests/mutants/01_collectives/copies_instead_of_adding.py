"""Whoever receives straight into the chunk, where an all-gather would."""

import torch
import torch.distributed as dist

TASK = "01.reduce_scatter"
HINT = "copies_instead_of_adding"


def reduce_scatter(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = list(torch.tensor_split(tensor, n))
    for step in range(n - 1):
        leaving, arriving = chunks[(rank - 1 - step) % n], chunks[(rank - 1 - 1 - step) % n]
        buffer = torch.empty_like(arriving)
        for work in [dist.isend(leaving, (rank + 1) % n), dist.irecv(buffer, (rank - 1) % n)]:
            work.wait()
        arriving.copy_(buffer)
    return chunks[rank]
