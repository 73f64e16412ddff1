"""Whoever returns a gradient for x, and forgets that the table learns too."""

import torch
from torch.nn import functional as F

TASK = "05.chunked"
HINT = "weight_gets_nothing"


class ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, targets, chunk):
        d_x, d_weight, loss = torch.zeros_like(x), torch.zeros_like(weight), 0.0
        count = (targets != -100).sum()
        for start in range(0, len(x), chunk):
            rows = slice(start, start + chunk)
            with torch.enable_grad():
                piece, w = x[rows].detach().requires_grad_(), weight.detach().requires_grad_()
                part = F.cross_entropy(piece @ w.T, targets[rows], reduction="sum") / count
            d_x[rows], d_w = torch.autograd.grad(part, (piece, w))
            d_weight += d_w
            loss += part.detach()
        ctx.d_x, ctx.d_weight = d_x, d_weight
        return loss

    @staticmethod
    def backward(ctx, gradient):
        return ctx.d_x * gradient, None, None, None


def chunked_cross_entropy(x, weight, targets, chunk):
    return ChunkedLoss.apply(x, weight, targets, chunk)
