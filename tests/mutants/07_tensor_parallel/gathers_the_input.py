"""Whoever makes the input whole first, and has a plain layer then."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

TASK = "07.row"
HINT = "gathers_the_input"


class RowParallelLinear(nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.detach())
        parts[dist.get_rank()] = x
        return F.linear(torch.cat(parts, dim=-1), self.weight, self.bias)
