"""Whoever takes int(log2 N) rounds: right for 1, 2 and 4 ranks, and rank 2 of 3 hears nothing."""

import math

import torch.distributed as dist

TASK = "01.broadcast"
HINT = "rounds_rounded_down"


def broadcast(tensor, root):
    rank, n = dist.get_rank(), dist.get_world_size()
    place = (rank - root) % n
    for reach in [2**i for i in range(int(math.log2(n)))]:
        if place < reach and place + reach < n:
            dist.send(tensor, (rank + reach) % n)
        elif reach <= place < 2 * reach:
            dist.recv(tensor, (rank - reach) % n)
