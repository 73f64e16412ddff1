"""Whoever halves the scale everywhere and steps all the same."""

import torch
import torch.distributed as dist

TASK = "04.overflow"
HINT = "never_skips"


def step_together(optimizer, parameters, scale):
    for p in parameters:
        p.grad /= scale
    found = torch.tensor(float(any(not p.grad.isfinite().all() for p in parameters)))
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    optimizer.step()
    return scale / 2 if found > 0 else scale
