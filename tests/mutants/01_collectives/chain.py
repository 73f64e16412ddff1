"""Whoever knows the ring, and passes the tensor along it."""

import torch.distributed as dist

TASK = "01.broadcast"
HINT = "chain"


def broadcast(tensor, root):
    rank, n = dist.get_rank(), dist.get_world_size()
    place = (rank - root) % n
    if place > 0:
        dist.recv(tensor, (rank - 1) % n)
    if place < n - 1:
        dist.send(tensor, (rank + 1) % n)
