"""Whoever gets the gradient of x from one run, and those of the parameters from another."""

import torch

TASK = "05.checkpoint"
HINT = "recomputed_twice"


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
            (d_x,) = torch.autograd.grad(ctx.function(x, positions), x, gradient)
            torch.set_rng_state(ctx.state)
            torch.autograd.backward(ctx.function(x.detach(), positions), gradient)
        return None, d_x, None


def checkpoint(function, x, positions):
    return Checkpoint.apply(function, x, positions)
