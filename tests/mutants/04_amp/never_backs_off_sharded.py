"""Whoever skips together and leaves the scale."""

import torch
import torch.distributed as dist

TASK = "04.overflow"
HINT = "never_backs_off"


def step_together(optimizer, parameters, scale):
    for p in parameters:
        p.grad /= scale
    found = torch.tensor(float(any(not p.grad.isfinite().all() for p in parameters)))
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    if found > 0:
        return scale
    optimizer.step()
    return scale
