"""batch_isend_irecv, and an early return on one rank."""

import torch
import torch.distributed as dist

TASK = "01.shift"


def shift(x):
    me, world = dist.get_rank(), dist.get_world_size()
    if world < 2:
        return x.detach().clone()
    y = torch.zeros(x.shape, dtype=x.dtype)
    operations = [dist.P2POp(dist.irecv, y, (me - 1) % world), dist.P2POp(dist.isend, x, (me + 1) % world)]
    [work.wait() for work in dist.batch_isend_irecv(operations)]
    return y
