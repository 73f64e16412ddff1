"""Whoever cuts by len // n: the last chunk takes the rest, and the buffers do not."""

import torch
import torch.distributed as dist

TASK = "01.reduce_scatter"
HINT = "sizes_differ"


def reduce_scatter(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    each = len(tensor) // n
    chunks = [tensor[i * each : (i + 1) * each if i < n - 1 else None] for i in range(n)]
    buffer = torch.empty(each, dtype=tensor.dtype)
    for step in range(n - 1):
        works = [dist.isend(chunks[(rank - 1 - step) % n], (rank + 1) % n), dist.irecv(buffer, (rank - 1) % n)]
        for work in works:
            work.wait()
        chunks[(rank - 2 - step) % n] += buffer
    return chunks[rank]
