"""A smaller nn.Linear that copies its rows."""

import torch
import torch.distributed as dist
from torch import nn

TASK = "07.column"


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.clone()
        dist.all_reduce(total)
        return total


class ColumnParallelLinear(nn.Linear):
    def __init__(self, linear):
        size = dist.get_world_size()
        each = linear.out_features // size
        super().__init__(linear.in_features, each, bias=linear.bias is not None, dtype=linear.weight.dtype)
        rows = slice(dist.get_rank() * each, (dist.get_rank() + 1) * each)
        with torch.no_grad():
            self.weight.copy_(linear.weight[rows])
            if self.bias is not None:
                self.bias.copy_(linear.bias[rows])

    def forward(self, x):
        return super().forward(Enter.apply(x))
