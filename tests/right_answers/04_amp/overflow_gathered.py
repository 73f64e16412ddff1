"""Gathers the flags of all ranks and looks at each."""

import torch
import torch.distributed as dist

TASK = "04.overflow"


def step_together(optimizer, parameters, scale):
    mine = torch.ones(1, dtype=torch.int32)
    for p in parameters:
        p.grad.mul_(1.0 / scale)
        mine *= int(torch.isfinite(p.grad).all())
    flags = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(flags, mine)
    if all(flag.item() == 1 for flag in flags):
        optimizer.step()
        return scale
    return scale * 0.5
