"""Whoever returns the part: the shape is right."""

import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

TASK = "07.row"
HINT = "forward_not_reduced"


class RowParallelLinear(nn.Module):
    def __init__(self, linear):
        super().__init__()
        rank, size = dist.get_rank(), dist.get_world_size()
        self.weight = nn.Parameter(linear.weight.detach().chunk(size, dim=1)[rank].clone())
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach().clone())

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)
