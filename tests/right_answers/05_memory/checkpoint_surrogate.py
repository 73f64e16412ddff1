"""The gradients from the sum of output times gradient; the parameters' arrive on the way."""

import torch

TASK = "05.checkpoint"


class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, x, positions):
        ctx.function = function
        ctx.state = torch.get_rng_state()
        ctx.save_for_backward(x, positions)
        return function(x, positions)

    @staticmethod
    def backward(ctx, gradient):
        x, positions = ctx.saved_tensors
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            torch.random.set_rng_state(ctx.state)
            again = x.detach().clone().requires_grad_(True)
            (ctx.function(again, positions) * gradient).sum().backward()
        return None, again.grad, None


def checkpoint(function, x, positions):
    return Again.apply(function, x, positions)
