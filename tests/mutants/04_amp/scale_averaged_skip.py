"""Whoever reduces the flag for the step, and averages the scales besides."""

import torch
import torch.distributed as dist

TASK = "04.overflow"
HINT = "scale_averaged"


def step_together(optimizer, parameters, scale):
    for p in parameters:
        p.grad /= scale
    found = torch.tensor(float(any(not p.grad.isfinite().all() for p in parameters)))
    new = torch.tensor(scale / 2 if found > 0 else scale)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    dist.all_reduce(new)
    if found > 0:
        return new.item() / dist.get_world_size()
    optimizer.step()
    return new.item() / dist.get_world_size()
