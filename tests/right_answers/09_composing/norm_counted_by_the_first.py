"""What lies on several ranks is counted by the first of each group alone; axis after axis."""

import math

import torch
import torch.distributed as dist

TASK = "09.norm"


def gradient_norm(gradients, placements, groups, p):
    def is_mine(lies):
        return all(dist.get_rank(groups[axis]) == 0 for axis, how in lies.items() if how == "replicated")

    mine = [g.flatten() for g, lies in zip(gradients, placements, strict=True) if is_mine(lies)]
    line = torch.cat([torch.zeros(1, dtype=torch.float64), *mine]).abs()
    total = line.max() if math.isinf(p) else (line**p).sum()
    for axis in ("tp", "dp", "pp"):
        dist.all_reduce(total, op=dist.ReduceOp.MAX if math.isinf(p) else dist.ReduceOp.SUM, group=groups[axis])
    return total if math.isinf(p) else total.pow(1 / p)
