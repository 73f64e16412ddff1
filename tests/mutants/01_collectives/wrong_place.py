"""Whoever writes what arrives to the index of the rank that was sent to."""

import torch.distributed as dist

TASK = "01.all_to_all"
HINT = "wrong_place"


def all_to_all(tensors):
    rank, n = dist.get_rank(), dist.get_world_size()
    result = [tensor.clone() for tensor in tensors]
    for step in range(1, n):
        to, source = (rank + step) % n, (rank - step) % n
        for work in [dist.isend(tensors[to], to), dist.irecv(result[to], source)]:
            work.wait()
    return result
