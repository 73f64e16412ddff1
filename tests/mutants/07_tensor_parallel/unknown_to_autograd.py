"""Whoever calls the collective in the middle of a model: the numbers are right, and torch warns that this is luck."""

import torch.distributed as dist

TASK = "07.all_reduce_identity"
HINT = "unknown_to_autograd"


def all_reduce_identity(x):
    total = x.clone()
    dist.all_reduce(total)
    return total
