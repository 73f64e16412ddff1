"""Whoever makes the buffer as long as the own chunk: the one that arrives may be longer by one element."""

import torch
import torch.distributed as dist

TASK = "01.reduce_scatter"
HINT = "sizes_differ"


def reduce_scatter(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = list(torch.tensor_split(tensor, n))
    for step in range(n - 1):
        leaving, arriving = chunks[(rank - 1 - step) % n], chunks[(rank - 1 - 1 - step) % n]
        buffer = torch.empty_like(chunks[rank])
        for work in [dist.isend(leaving, (rank + 1) % n), dist.irecv(buffer, (rank - 1) % n)]:
            work.wait()
        arriving += buffer
    return chunks[rank]
