"""Whoever all-reduces the gradients, as under DDP, so that the inf spreads."""

import torch
import torch.distributed as dist

TASK = "04.overflow"
HINT = "gradients_sent"


def step_together(optimizer, parameters, scale):
    for p in parameters:
        p.grad /= scale
        dist.all_reduce(p.grad)
    found = torch.tensor(float(any(not p.grad.isfinite().all() for p in parameters)))
    if found > 0:
        return scale / 2
    optimizer.step()
    return scale
