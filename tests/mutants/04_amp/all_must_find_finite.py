"""Whoever adds up who is finite, and steps if anybody is."""

import torch
import torch.distributed as dist

TASK = "04.overflow"
HINT = "all_must_find"


def step_together(optimizer, parameters, scale):
    for p in parameters:
        p.grad /= scale
    finite = torch.tensor(float(all(p.grad.isfinite().all() for p in parameters)))
    dist.all_reduce(finite)
    if finite == 0:
        return scale / 2
    optimizer.step()
    return scale
