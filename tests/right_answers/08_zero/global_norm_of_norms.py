"""The norm of each gradient first, and a number of Python at the end."""

import torch
import torch.distributed as dist

TASK = "08.global_norm"


def global_norm(shards):
    norms = [torch.linalg.vector_norm(one).double() for one in shards]
    total = torch.stack(norms).square().sum() if norms else torch.zeros((), dtype=torch.float64)
    dist.all_reduce(total)
    return total.item() ** 0.5
