"""Whoever multiplies the bias by 0 on the other ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

TASK = "07.row"
HINT = "bias_on_one_rank"


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
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach().clone())

    def forward(self, x):
        y = F.linear(x, self.weight)
        return Leave.apply(y if self.bias is None else y + self.bias * (dist.get_rank() == 0))
