"""Softmax minus one-hot, written by hand, in forward."""

import torch

TASK = "05.chunked"


class Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, targets, chunk):
        counts = targets != -100
        total, d_x, d_weight = 0.0, torch.empty_like(x), torch.zeros_like(weight)
        for i in range(0, len(x), chunk):
            piece, mask = x[i : i + chunk], counts[i : i + chunk].to(x.dtype)
            target = targets[i : i + chunk].clamp(min=0)
            logits = piece @ weight.T
            top = logits.logsumexp(1)
            total = total + ((top - logits.gather(1, target[:, None])[:, 0]) * mask).sum()
            logits = logits.sub_(top[:, None]).exp_()
            logits[torch.arange(len(piece)), target] -= 1
            logits *= (mask / counts.sum())[:, None]
            d_x[i : i + chunk] = logits @ weight
            d_weight += logits.T @ piece
        ctx.save_for_backward(d_x, d_weight)
        return total / counts.sum()

    @staticmethod
    def backward(ctx, gradient):
        d_x, d_weight = ctx.saved_tensors
        return gradient * d_x, gradient * d_weight, None, None


def chunked_cross_entropy(x, weight, targets, chunk):
    return Chunked.apply(x, weight, targets, chunk)
