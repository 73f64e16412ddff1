"""The others' parts are a constant, so backward is the identity by itself."""

import torch
import torch.distributed as dist

TASK = "07.all_reduce_identity"


def all_reduce_identity(x):
    with torch.no_grad():
        total = x.clone()
        dist.all_reduce(total)
        others = total - x
    return x + others
