"""Whoever halves the scale where the overflow was, and skips everywhere."""

import torch
import torch.distributed as dist

TASK = "04.overflow"
HINT = "backs_off_alone"


def step_together(optimizer, parameters, scale):
    for p in parameters:
        p.grad /= scale
    found = torch.tensor(float(any(not p.grad.isfinite().all() for p in parameters)))
    new = scale / 2 if found > 0 else scale
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    if found > 0:
        return new
    optimizer.step()
    return new
