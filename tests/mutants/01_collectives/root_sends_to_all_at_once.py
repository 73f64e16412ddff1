"""Whoever posts all sends together: one link still carries them one after the other."""

import torch.distributed as dist

TASK = "01.broadcast"
HINT = "root_sends_to_all"


def broadcast(tensor, root):
    rank, n = dist.get_rank(), dist.get_world_size()
    if rank != root:
        works = [dist.irecv(tensor, root)]
    else:
        works = [dist.isend(tensor, other) for other in range(n) if other != root]
    for work in works:
        work.wait()
