"""Whoever reduces the output in place, in the middle of the graph."""

import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

TASK = "07.row"
HINT = "unknown_to_autograd"


class RowParallelLinear(nn.Module):
    def __init__(self, linear):
        super().__init__()
        rank, size = dist.get_rank(), dist.get_world_size()
        self.weight = nn.Parameter(linear.weight.detach().chunk(size, dim=1)[rank].clone())
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach().clone())

    def forward(self, x):
        y = F.linear(x, self.weight)
        dist.all_reduce(y)
        return y if self.bias is None else y + self.bias
