"""A smaller nn.Linear whose own bias is added late."""

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


class RowParallelLinear(nn.Linear):
    def __init__(self, linear):
        rank, size = dist.get_rank(), dist.get_world_size()
        each = linear.in_features // size
        super().__init__(each, linear.out_features, bias=linear.bias is not None, dtype=linear.weight.dtype)
        own = {"weight": linear.weight.detach().tensor_split(size, dim=1)[rank]}
        self.load_state_dict(own if self.bias is None else own | {"bias": linear.bias.detach()})

    def forward(self, x):
        y = Leave.apply(torch.einsum("...i,oi->...o", x, self.weight))
        return y if self.bias is None else y + self.bias
