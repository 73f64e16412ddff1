"""Whoever keeps the whole layer and slices in forward: right, and no byte is saved."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

TASK = "07.column"
HINT = "not_cut"


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
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x):
        rank, size = dist.get_rank(), dist.get_world_size()
        bias = None if self.bias is None else self.bias.chunk(size)[rank]
        return F.linear(Enter.apply(x), self.weight.chunk(size)[rank], bias)
