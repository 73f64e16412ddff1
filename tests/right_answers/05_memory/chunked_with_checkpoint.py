"""The checkpoint of the task before, around the loss of a chunk, as the hint says."""

import torch
from torch.nn import functional as F

TASK = "05.chunked"


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, x, positions):
        ctx.function, ctx.rng_state = function, torch.get_rng_state()
        ctx.save_for_backward(x, positions)
        return function(x, positions)

    @staticmethod
    def backward(ctx, gradient):
        x, positions = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.rng_state)
            output = ctx.function(x, positions)
        torch.autograd.backward(output, gradient)
        return None, x.grad, None


def chunked_cross_entropy(x, weight, targets, chunk):
    def summed(piece, target):
        return F.cross_entropy(piece @ weight.T, target, reduction="sum")

    pieces = zip(x.split(chunk), targets.split(chunk), strict=True)
    return sum(Checkpoint.apply(summed, *pair) for pair in pieces) / (targets != -100).sum()
