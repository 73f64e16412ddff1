"""Whoever looks the target up as in a whole vocabulary."""

import torch
import torch.distributed as dist

TASK = "07.cross_entropy"
HINT = "target_not_shifted"


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
    mine = targets // part == dist.get_rank()
    own = shifted.gather(1, targets.clamp(min=0)[:, None])[:, 0]
    target = Leave.apply(torch.where(mine, own, 0.0))
    return (total.log() - target)[targets != -100].mean()
