"""Whoever averages gradients over ranks, as in data parallelism."""

import torch
import torch.distributed as dist

TASK = "07.identity_all_reduce"
HINT = "averaged"


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.clone()
        dist.all_reduce(total)
        return total / dist.get_world_size()


def identity_all_reduce(x):
    return Enter.apply(x)
