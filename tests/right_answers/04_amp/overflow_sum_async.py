"""A sum of flags, asynchronous; a tensor is returned."""

import torch
import torch.distributed as dist

TASK = "04.overflow"


def step_together(optimizer, parameters, scale):
    flat = torch.cat([torch.zeros(0), *(p.grad.flatten() for p in parameters)])
    bad = (~flat.isfinite()).sum()
    work = dist.all_reduce(bad, async_op=True)
    for p in parameters:
        p.grad.div_(scale)
    work.wait()
    if bad == 0:
        optimizer.step()
    return torch.where(bad > 0, torch.tensor(scale / 2), torch.tensor(scale))
