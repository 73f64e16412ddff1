"""Whoever wants the output whole after each layer, so that nobody need know of the cut."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

TASK = "07.column"
HINT = "gathers_the_output"


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.clone()
        dist.all_reduce(total)
        return total


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, dim=-1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.chunk(dist.get_world_size(), dim=-1)[dist.get_rank()]


class ColumnParallelLinear(nn.Module):
    def __init__(self, linear):
        super().__init__()
        rank, size = dist.get_rank(), dist.get_world_size()
        self.weight = nn.Parameter(linear.weight.detach().chunk(size)[rank].clone())
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach().chunk(size)[rank].clone())

    def forward(self, x):
        part = F.linear(Enter.apply(x), self.weight, self.bias)
        return Gather.apply(part)
