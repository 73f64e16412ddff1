"""Whoever saves the state of the generator after the first pass, when the masks are drawn already."""

import torch

TASK = "05.checkpoint"
HINT = "other_mask"


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, x, positions):
        ctx.function = function
        ctx.save_for_backward(x, positions)
        output = function(x, positions)
        ctx.state = torch.get_rng_state()
        return output

    @staticmethod
    def backward(ctx, gradient):
        x, positions = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.state)
            output = ctx.function(x, positions)
        torch.autograd.backward(output, gradient)
        return None, x.grad, None


def checkpoint(function, x, positions):
    return Checkpoint.apply(function, x, positions)
