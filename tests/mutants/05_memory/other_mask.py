"""Whoever recomputes and forgets that dropout draws anew."""

import torch

TASK = "05.checkpoint"
HINT = "other_mask"


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, x, positions):
        ctx.function = function
        ctx.save_for_backward(x, positions)
        return function(x, positions)

    @staticmethod
    def backward(ctx, gradient):
        x, positions = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            output = ctx.function(x, positions)
        torch.autograd.backward(output, gradient)
        return None, x.grad, None


def checkpoint(function, x, positions):
    return Checkpoint.apply(function, x, positions)
