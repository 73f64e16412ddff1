"""Whoever saves a buffer: the tensor is received into while it is still being sent."""

import torch.distributed as dist

TASK = "01.shift"
HINT = "overwrites_send_buffer"


def shift(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    if n > 1:
        sending = dist.isend(tensor, (rank + 1) % n)
        dist.recv(tensor, (rank - 1) % n)
        sending.wait()
    return tensor
