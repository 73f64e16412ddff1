"""Whoever remembers that f goes into the layer, and which one that is not."""

import torch
import torch.distributed as dist

TASK = "07.all_reduce_identity"
HINT = "operators_swapped"


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.clone()
        dist.all_reduce(total)
        return total


def all_reduce_identity(x):
    return Leave.apply(x)
