"""Whoever sends chunk r first, as every picture of a ring starts, and returns it: the complete one is chunk r + 1."""

import torch
import torch.distributed as dist

TASK = "01.reduce_scatter"
HINT = "chunk_off_by_one"


def reduce_scatter(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    chunks = list(torch.tensor_split(tensor, size))
    for step in range(size - 1):
        mine = chunks[(rank - step - 1) % size]
        arriving = torch.empty_like(mine)
        work = dist.isend(chunks[(rank - step) % size], (rank + 1) % size)
        dist.recv(arriving, (rank - 1) % size)
        work.wait()
        mine += arriving
    return chunks[rank]
