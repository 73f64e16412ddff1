"""The global norm that a clip needs anyway carries the inf to everybody."""

import torch
import torch.distributed as dist

TASK = "04.overflow"


def step_together(optimizer, parameters, scale):
    if parameters:
        torch._foreach_div_([p.grad for p in parameters], scale)
    total = sum((p.grad.double().square().sum() for p in parameters), start=torch.zeros((), dtype=torch.float64))
    dist.all_reduce(total)
    if not torch.isfinite(total):
        return scale / 2
    optimizer.step()
    return scale
