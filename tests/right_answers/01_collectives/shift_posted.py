"""isend and recv, one buffer."""

import torch
import torch.distributed as dist

TASK = "01.shift"


def shift(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return tensor.clone()
    arrived = torch.empty_like(tensor)
    sending = dist.isend(tensor, (rank + 1) % n)
    dist.recv(arrived, (rank - 1) % n)
    sending.wait()
    return arrived
