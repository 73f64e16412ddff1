"""Whoever does not know that gradients are off inside an autograd.Function."""

import torch

TASK = "05.checkpoint"
HINT = "without_grad_mode"


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
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ctx.state)
            output = ctx.function(x, positions)
        torch.autograd.backward(output, gradient)
        return None, x.grad, None


def checkpoint(function, x, positions):
    return Checkpoint.apply(function, x, positions)
