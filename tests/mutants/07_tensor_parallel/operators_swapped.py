"""Whoever mixes up Megatron's f and g."""

import torch
import torch.distributed as dist

TASK = "07.identity_all_reduce"
HINT = "operators_swapped"


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def identity_all_reduce(x):
    return Enter.apply(x)
