"""Whoever writes what broadcast means, not how it is done: N - 1 rounds on the root's link."""

import torch.distributed as dist

TASK = "01.broadcast"
HINT = "root_sends_to_all"


def broadcast(tensor, root):
    rank, n = dist.get_rank(), dist.get_world_size()
    if rank != root:
        dist.recv(tensor, root)
        return
    for other in range(n):
        if other != root:
            dist.send(tensor, other)
