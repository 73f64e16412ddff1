"""Whoever receives into a new tensor and only renames it."""

import torch
import torch.distributed as dist

TASK = "01.broadcast"
HINT = "not_in_place"


def broadcast(tensor, root):
    rank, n = dist.get_rank(), dist.get_world_size()
    place, reach = (rank - root) % n, 1
    while reach < n:
        if place < reach and place + reach < n:
            dist.send(tensor, (rank + reach) % n)
        elif reach <= place < 2 * reach:
            arrived = torch.empty_like(tensor)
            dist.recv(arrived, (rank - reach) % n)
            tensor = arrived
        reach *= 2
    return tensor
