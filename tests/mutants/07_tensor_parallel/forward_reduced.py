"""Whoever adds in both directions, as torch.distributed.nn.all_reduce does."""

import torch
import torch.distributed as dist

TASK = "07.identity_all_reduce"
HINT = "forward_reduced"


class Enter(torch.autograd.Function):
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


def identity_all_reduce(x):
    return Enter.apply(x)
