"""Whoever deals columns out as a sampler deals examples."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

TASK = "07.column"
HINT = "dealt_out"


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.clone()
        dist.all_reduce(total)
        return total


class ColumnParallelLinear(nn.Module):
    def __init__(self, linear):
        super().__init__()
        rank, size = dist.get_rank(), dist.get_world_size()
        self.weight = nn.Parameter(linear.weight.detach()[rank::size].clone())
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach()[rank::size].clone())

    def forward(self, x):
        return F.linear(Enter.apply(x), self.weight, self.bias)
