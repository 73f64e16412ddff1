"""Whoever has averaged over ranks for so long that a sum looks unfinished."""

import torch
import torch.distributed as dist

TASK = "07.all_reduce_identity"
HINT = "averaged"


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        total = x.clone()
        dist.all_reduce(total)
        return total / dist.get_world_size()

    @staticmethod
    def backward(ctx, gradient):
        return gradient / dist.get_world_size()


def all_reduce_identity(x):
    return Leave.apply(x)
