"""Whoever saves the message where there is nothing to tell."""

import torch
import torch.distributed as dist

TASK = "04.overflow"
HINT = "asks_only_when_found"


def step_together(optimizer, parameters, scale):
    for p in parameters:
        p.grad /= scale
    found = torch.tensor(float(any(not p.grad.isfinite().all() for p in parameters)))
    if found > 0:
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
    if found > 0:
        return scale / 2
    optimizer.step()
    return scale
