"""Whoever treats all arguments alike."""

import torch

TASK = "05.checkpoint"
HINT = "integers_want_no_gradient"


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
        x, positions = (saved.detach().requires_grad_() for saved in (x, positions))
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.state)
            output = ctx.function(x, positions)
        torch.autograd.backward(output, gradient)
        return None, x.grad, positions.grad


def checkpoint(function, x, positions):
    return Checkpoint.apply(function, x, positions)
