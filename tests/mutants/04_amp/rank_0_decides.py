"""Whoever lets rank 0 tell the others, as with weights at the start."""

import torch
import torch.distributed as dist

TASK = "04.overflow"
HINT = "rank_0_decides"


def step_together(optimizer, parameters, scale):
    for p in parameters:
        p.grad /= scale
    found = torch.tensor(float(any(not p.grad.isfinite().all() for p in parameters)))
    dist.broadcast(found, src=0)
    if found > 0:
        return scale / 2
    optimizer.step()
    return scale
