"""Whoever receives into the list that is being sent from: step 2 sends what step 1 received."""

import torch.distributed as dist

TASK = "01.all_to_all"
HINT = "overwrites_send_buffer"


def all_to_all(tensors):
    rank, n = dist.get_rank(), dist.get_world_size()
    for step in range(1, n):
        to, source = (rank + step) % n, (rank - step) % n
        for work in [dist.isend(tensors[to], to), dist.irecv(tensors[source], source)]:
            work.wait()
    return tensors
