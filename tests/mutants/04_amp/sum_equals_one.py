"""Whoever adds up the flags and compares with one."""

import torch
import torch.distributed as dist

TASK = "04.overflow"
HINT = "sum_equals_one"


def step_together(optimizer, parameters, scale):
    for p in parameters:
        p.grad /= scale
    found = torch.tensor(float(any(not p.grad.isfinite().all() for p in parameters)))
    dist.all_reduce(found)
    if found == 1:
        return scale / 2
    optimizer.step()
    return scale
