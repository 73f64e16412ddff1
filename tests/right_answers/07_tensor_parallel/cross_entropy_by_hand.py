"""Backward written by hand, and two numbers in one message, as Megatron could."""

import torch
import torch.distributed as dist

TASK = "07.cross_entropy"


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
        ctx.save_for_backward(exp / total[:, None], place, mine, counted)
        return (total.log() - target)[counted].mean()

    @staticmethod
    def backward(ctx, gradient):
        softmax, place, mine, counted = ctx.saved_tensors
        one_hot = torch.zeros_like(softmax).scatter_(1, place[:, None], mine.to(softmax.dtype)[:, None])
        scale = gradient * counted[:, None] / counted.sum()
        return scale * (softmax - one_hot), None


def vocab_parallel_cross_entropy(logits, targets):
    return Loss.apply(logits, targets)
