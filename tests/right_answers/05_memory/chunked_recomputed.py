"""Recomputes each chunk's logits in backward."""

import torch
from torch.nn import functional as F

TASK = "05.chunked"


class PartLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, piece, weight, target):
        ctx.save_for_backward(piece, weight, target)
        return F.cross_entropy(piece @ weight.T, target, reduction="sum")

    @staticmethod
    def backward(ctx, gradient):
        piece, weight, target = ctx.saved_tensors
        piece, weight = piece.detach().requires_grad_(), weight.detach().requires_grad_()
        with torch.enable_grad():
            F.cross_entropy(piece @ weight.T, target, reduction="sum").backward(gradient)
        return piece.grad, weight.grad, None


def chunked_cross_entropy(x, weight, targets, chunk):
    total = x.new_zeros(())
    for piece, target in zip(x.split(chunk), targets.split(chunk), strict=True):
        total = total + PartLoss.apply(piece, weight, target)
    return total / targets.ne(-100).sum()
