"""Most people's first ring: send, then receive. It hangs at any size."""

import torch
import torch.distributed as dist

TASK = "01.shift"
HINT = "sends_first"


def shift(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return tensor.clone()
    arrived = torch.empty_like(tensor)
    dist.send(tensor, (rank + 1) % n)
    dist.recv(arrived, (rank - 1) % n)
    return arrived
