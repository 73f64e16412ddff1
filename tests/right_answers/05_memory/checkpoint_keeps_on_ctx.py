"""Keeps detached inputs on ctx, and restores the generator by hand."""

import torch

TASK = "05.checkpoint"


class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, x, *others):
        ctx.function, ctx.others = function, others
        ctx.x, ctx.state = x.detach(), torch.get_rng_state()
        with torch.no_grad():
            return function(x, *others)

    @staticmethod
    def backward(ctx, gradient):
        now = torch.get_rng_state()
        torch.set_rng_state(ctx.state)
        try:
            with torch.enable_grad():
                x = ctx.x.clone().requires_grad_()
                output = ctx.function(x, *ctx.others)
        finally:
            torch.set_rng_state(now)
        output.backward(gradient)
        return (None, x.grad, *(None for _ in ctx.others))


def checkpoint(function, x, positions):
    return Recompute.apply(function, x, positions)
