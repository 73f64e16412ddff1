"""Whoever writes the autograd function and keeps the graph of forward for backward."""

import torch

TASK = "05.checkpoint"
HINT = "never_recomputes"


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, x, positions):
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.output = function(ctx.x, positions)
        return ctx.output.detach()

    @staticmethod
    def backward(ctx, gradient):
        ctx.output.backward(gradient)
        return None, ctx.x.grad, None


def checkpoint(function, x, positions):
    return Checkpoint.apply(function, x, positions)
