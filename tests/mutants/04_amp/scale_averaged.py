"""Whoever keeps the scales equal by averaging them."""

import torch
import torch.distributed as dist

TASK = "04.overflow"
HINT = "scale_averaged"


def step_together(optimizer, parameters, scale):
    for p in parameters:
        p.grad /= scale
    found = torch.tensor(float(any(not p.grad.isfinite().all() for p in parameters)))
    if found == 0:
        optimizer.step()
    new = torch.tensor(scale / 2 if found > 0 else scale)
    dist.all_reduce(new)
    return new.item() / dist.get_world_size()
