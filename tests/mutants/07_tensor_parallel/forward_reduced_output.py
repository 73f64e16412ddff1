"""Whoever has heard that a layer ends with an all-reduce, and puts it behind each."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

TASK = "07.column"
HINT = "forward_reduced"


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.clone()
        dist.all_reduce(total)
        return total


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class ColumnParallelLinear(nn.Module):
    def __init__(self, linear):
        super().__init__()
        rank, size = dist.get_rank(), dist.get_world_size()
        self.weight = nn.Parameter(linear.weight.detach().chunk(size)[rank].clone())
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach().chunk(size)[rank].clone())

    def forward(self, x):
        return Leave.apply(F.linear(Enter.apply(x), self.weight, self.bias))
