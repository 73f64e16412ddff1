"""Whoever draws the tree from rank 0, as the pictures do."""

import torch.distributed as dist

TASK = "01.broadcast"
HINT = "root_ignored"


def broadcast(tensor, root):
    rank, n = dist.get_rank(), dist.get_world_size()
    place, reach = rank, 1
    while reach < n:
        if place < reach and place + reach < n:
            dist.send(tensor, (rank + reach) % n)
        elif reach <= place < 2 * reach:
            dist.recv(tensor, (rank - reach) % n)
        reach *= 2
