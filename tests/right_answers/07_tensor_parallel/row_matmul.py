"""Without F.linear, and the bias registered as None where there is none."""

import copy

import torch
import torch.distributed as dist
from torch import nn

TASK = "07.row"


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
        each = linear.in_features // dist.get_world_size()
        start = dist.get_rank() * each
        self.weight = nn.Parameter(linear.weight[:, start : start + each].detach().contiguous().clone())
        self.register_parameter("bias", copy.deepcopy(linear.bias))

    def forward(self, x):
        y = Leave.apply(x @ self.weight.T)
        if self.bias is not None:
            y = y + self.bias
        return y
