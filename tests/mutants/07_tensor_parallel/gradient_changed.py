"""Whoever reduces the incoming gradient in place, to save a copy."""

import torch
import torch.distributed as dist

TASK = "07.identity_all_reduce"
HINT = "gradient_changed"


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        dist.all_reduce(gradient)
        return gradient


def identity_all_reduce(x):
    return Enter.apply(x)
