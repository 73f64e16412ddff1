"""Whoever makes dropout repeat with a seed: every block then drops the same numbers, in every step."""

import torch

TASK = "05.checkpoint"
HINT = "reseeded"


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, x, positions):
        ctx.function = function
        torch.manual_seed(0)
        ctx.save_for_backward(x, positions)
        return function(x, positions)

    @staticmethod
    def backward(ctx, gradient):
        x, positions = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(0)
            output = ctx.function(x, positions)
        torch.autograd.backward(output, gradient)
        return None, x.grad, None


def checkpoint(function, x, positions):
    return Checkpoint.apply(function, x, positions)
