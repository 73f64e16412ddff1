"""A recursive tree: hand one half of the ranks to the first of the other half, then both go on alone."""

import torch.distributed as dist

TASK = "01.broadcast"


def broadcast(tensor, root):
    rank, n = dist.get_rank(), dist.get_world_size()

    def spread(places):
        if len(places) == 1:
            return
        middle = (len(places) + 1) // 2
        first, half = (root + places[0]) % n, (root + places[middle]) % n
        if rank == first:
            dist.send(tensor, half)
        elif rank == half:
            dist.recv(tensor, first)
        spread(places[:middle])
        spread(places[middle:])

    spread(range(n))
