"""Whoever sees that forward needs no message, and does not think of backward."""

import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

TASK = "07.column"
HINT = "backward_not_reduced"


class ColumnParallelLinear(nn.Module):
    def __init__(self, linear):
        super().__init__()
        rank, size = dist.get_rank(), dist.get_world_size()
        self.weight = nn.Parameter(linear.weight.detach().chunk(size)[rank].clone())
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach().chunk(size)[rank].clone())

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)
