"""Whoever sends all of it, then receives all of it."""

import torch.distributed as dist

TASK = "01.all_to_all"
HINT = "sends_first"


def all_to_all(tensors):
    rank, n = dist.get_rank(), dist.get_world_size()
    result = [tensor.clone() for tensor in tensors]
    for step in range(1, n):
        dist.send(tensors[(rank + step) % n], (rank + step) % n)
    for step in range(1, n):
        dist.recv(result[(rank - step) % n], (rank - step) % n)
    return result
