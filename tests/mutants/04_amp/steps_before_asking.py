"""Whoever steps by their own flag, and reduces it for the scale."""

import torch
import torch.distributed as dist

TASK = "04.overflow"
HINT = "steps_before_asking"


def step_together(optimizer, parameters, scale):
    for p in parameters:
        p.grad /= scale
    found = torch.tensor(float(any(not p.grad.isfinite().all() for p in parameters)))
    if found == 0:
        optimizer.step()
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    if found > 0:
        return scale / 2
    return scale
