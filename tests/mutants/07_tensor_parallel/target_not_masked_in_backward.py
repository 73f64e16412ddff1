"""Whoever writes backward by hand and subtracts 1 on every rank."""

import torch
import torch.distributed as dist

TASK = "07.cross_entropy"
HINT = "target_not_masked"


class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, targets):
        part = logits.shape[1]
        largest = logits.amax(dim=1)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        exp = (logits - largest[:, None]).exp()
        place = targets - dist.get_rank() * part
        mine, place = (place >= 0) & (place < part), place.clamp(0, part - 1)
        own = logits.gather(1, place[:, None])[:, 0] - largest
        both = torch.stack([exp.sum(dim=1), own * mine])
        dist.all_reduce(both)
        total, target = both
        counted = targets != -100
        ctx.save_for_backward(exp / total[:, None], place, counted)
        return (total.log() - target)[counted].mean()

    @staticmethod
    def backward(ctx, gradient):
        softmax, place, counted = ctx.saved_tensors
        one_hot = torch.zeros_like(softmax).scatter_(1, place[:, None], torch.ones_like(softmax[:, :1]))
        scale = gradient * counted[:, None] / counted.sum()
        return scale * (softmax - one_hot), None


def vocab_parallel_cross_entropy(logits, targets):
    return Loss.apply(logits, targets)
