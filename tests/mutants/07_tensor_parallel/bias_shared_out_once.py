"""Whoever stores a share of the bias on each rank."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

TASK = "07.row"
HINT = "bias_shared_out"


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class RowParallelLinear(nn.Module):
    def __init__(self, linear):
        super().__init__()
        rank, size = dist.get_rank(), dist.get_world_size()
        self.weight = nn.Parameter(linear.weight.detach().chunk(size, dim=1)[rank].clone())
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach() / size)

    def forward(self, x):
        return Leave.apply(F.linear(x, self.weight, self.bias))
