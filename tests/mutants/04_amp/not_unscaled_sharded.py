"""Whoever looks for overflows and forgets to divide."""

import torch
import torch.distributed as dist

TASK = "04.overflow"
HINT = "not_unscaled"


def step_together(optimizer, parameters, scale):
    found = torch.tensor(float(any(not p.grad.isfinite().all() for p in parameters)))
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    if found > 0:
        return scale / 2
    optimizer.step()
    return scale
