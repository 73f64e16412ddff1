"""Whoever sums the tensor and not over the ranks' tensors: nothing is sent."""

import torch

TASK = "07.all_reduce_identity"
HINT = "forward_not_reduced"


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def all_reduce_identity(x):
    return Leave.apply(x)
