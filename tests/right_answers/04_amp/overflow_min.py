"""MIN of finite; new gradients instead of in place."""

import torch
import torch.distributed as dist

TASK = "04.overflow"


def step_together(optimizer, parameters, scale):
    for p in parameters:
        p.grad = p.grad / scale
    finite = torch.tensor([all(bool(p.grad.isfinite().all()) for p in parameters)], dtype=torch.uint8)
    dist.all_reduce(finite, dist.ReduceOp.MIN)
    if finite.item():
        optimizer.step()
    return scale if finite.item() else scale / 2
