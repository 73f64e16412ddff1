"""Whoever takes MIN of found."""

import torch
import torch.distributed as dist

TASK = "04.overflow"
HINT = "all_must_find"


def step_together(optimizer, parameters, scale):
    for p in parameters:
        p.grad /= scale
    found = torch.tensor(float(any(not p.grad.isfinite().all() for p in parameters)))
    dist.all_reduce(found, op=dist.ReduceOp.MIN)
    if found > 0:
        return scale / 2
    optimizer.step()
    return scale
