"""Whoever writes the ring with send and recv."""

import torch
import torch.distributed as dist

TASK = "01.reduce_scatter"
HINT = "sends_first"


def reduce_scatter(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = list(torch.tensor_split(tensor, n))
    for step in range(n - 1):
        arriving = chunks[(rank - 2 - step) % n]
        buffer = torch.empty_like(arriving)
        dist.send(chunks[(rank - 1 - step) % n], (rank + 1) % n)
        dist.recv(buffer, (rank - 1) % n)
        arriving += buffer
    return chunks[rank]
