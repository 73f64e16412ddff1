"""Whoever changes the scale and keeps it to themselves."""

import torch
import torch.distributed as dist

TASK = "04.overflow"
HINT = "nothing_returned"


def step_together(optimizer, parameters, scale):
    for p in parameters:
        p.grad /= scale
    found = torch.tensor(float(any(not p.grad.isfinite().all() for p in parameters)))
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    if found > 0:
        scale /= 2
    else:
        optimizer.step()
