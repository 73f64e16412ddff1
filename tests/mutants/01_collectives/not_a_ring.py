"""Whoever sends each chunk straight to its owner: the same bytes, and across the whole network."""

import torch
import torch.distributed as dist

TASK = "01.reduce_scatter"
HINT = "not_a_ring"


def reduce_scatter(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = torch.tensor_split(tensor, n)
    total = chunks[rank].clone()
    for step in range(1, n):
        to, source = (rank + step) % n, (rank - step) % n
        buffer = torch.empty_like(total)
        for work in [dist.isend(chunks[to], to), dist.irecv(buffer, source)]:
            work.wait()
        total += buffer
    return total
