"""Whoever recomputes with the saved tensor itself, which still belongs to the graph before it."""

import torch

TASK = "05.checkpoint"
HINT = "not_detached"


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
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.state)
            output = ctx.function(x, positions)
        torch.autograd.backward(output, gradient)
        return None, x.grad, None


def checkpoint(function, x, positions):
    return Checkpoint.apply(function, x, positions)
