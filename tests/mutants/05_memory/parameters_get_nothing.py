"""Whoever thinks of a function of x alone: its parameters are no arguments, and get nothing."""

import torch

TASK = "05.checkpoint"
HINT = "parameters_get_nothing"


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, x, positions):
        ctx.function = function
        ctx.state = torch.get_rng_state()
        ctx.save_for_backward(x, positions)
        return function(x, positions)

    @staticmethod
    def backward(ctx, gradient):
        x, positions = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.state)
            output = ctx.function(x, positions)
        (d_x,) = torch.autograd.grad(output, x, gradient)
        return None, d_x, None


def checkpoint(function, x, positions):
    return Checkpoint.apply(function, x, positions)
