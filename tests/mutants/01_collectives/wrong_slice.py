"""Whoever thinks 'my part' and sends tensors[rank] to everybody: the rows of the sender."""

import torch.distributed as dist

TASK = "01.all_to_all"
HINT = "wrong_slice"


def all_to_all(tensors):
    rank, n = dist.get_rank(), dist.get_world_size()
    result = [tensor.clone() for tensor in tensors]
    for step in range(1, n):
        to, source = (rank + step) % n, (rank - step) % n
        for work in [dist.isend(tensors[rank], to), dist.irecv(result[source], source)]:
            work.wait()
    return result
