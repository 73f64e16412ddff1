"""Whoever numbers the places from the root, and forgets to turn them back into ranks."""

import torch.distributed as dist

TASK = "01.broadcast"
HINT = "place_for_rank"


def broadcast(tensor, root):
    rank, n = dist.get_rank(), dist.get_world_size()
    place, reach = (rank - root) % n, 1
    while reach < n:
        if place < reach and place + reach < n:
            dist.send(tensor, (place + reach) % n)
        elif reach <= place < 2 * reach:
            dist.recv(tensor, (place - reach) % n)
        reach *= 2
