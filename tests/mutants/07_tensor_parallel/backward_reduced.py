"""Whoever adds in both directions, as torch.distributed.nn.all_reduce does."""

import torch
import torch.distributed as dist

TASK = "07.all_reduce_identity"
HINT = "backward_reduced"


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.clone()
        dist.all_reduce(total)
        return total


def all_reduce_identity(x):
    return Leave.apply(x)
