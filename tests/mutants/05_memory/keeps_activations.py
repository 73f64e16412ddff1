"""Whoever recomputes, and also keeps the first pass with its graph, for debugging."""

import torch

TASK = "05.checkpoint"
HINT = "keeps_activations"


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, x, positions):
        ctx.function = function
        ctx.state = torch.get_rng_state()
        ctx.save_for_backward(x, positions)
        with torch.enable_grad():
            ctx.first = function(x.detach().requires_grad_(), positions)
        return ctx.first.detach()

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
