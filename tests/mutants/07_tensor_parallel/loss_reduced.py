"""Whoever adds up the losses of the ranks, as a data-parallel loop does for printing."""

import torch
import torch.distributed as dist

TASK = "07.cross_entropy"
HINT = "loss_reduced"


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def vocab_parallel_cross_entropy(logits, targets):
    part = logits.shape[1]
    largest = logits.detach().amax(dim=1)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    shifted = logits - largest[:, None]
    total = Leave.apply(shifted.exp().sum(dim=1))
    place = targets - dist.get_rank() * part
    mine = (place >= 0) & (place < part)
    own = shifted.gather(1, place.clamp(0, part - 1)[:, None])[:, 0]
    target = Leave.apply(torch.where(mine, own, 0.0))
    return Leave.apply((total.log() - target)[targets != -100].mean())
