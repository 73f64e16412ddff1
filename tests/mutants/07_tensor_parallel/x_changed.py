"""Whoever forgets that all_reduce works in place."""

import torch
import torch.distributed as dist

TASK = "07.all_reduce_identity"
HINT = "x_changed"


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        dist.all_reduce(x)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def all_reduce_identity(x):
    return Leave.apply(x)
