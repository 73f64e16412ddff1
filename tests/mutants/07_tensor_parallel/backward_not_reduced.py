"""Whoever thinks that an identity needs no backward of its own."""

import torch

TASK = "07.identity_all_reduce"
HINT = "backward_not_reduced"


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def identity_all_reduce(x):
    return Enter.apply(x)
