"""Whoever gathers the logits and calls torch's own loss."""

import torch
import torch.distributed as dist
from torch.nn import functional as F

TASK = "07.cross_entropy"
HINT = "gathers_the_logits"


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, dim=1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.chunk(dist.get_world_size(), dim=1)[dist.get_rank()]


def vocab_parallel_cross_entropy(logits, targets):
    return F.cross_entropy(Gather.apply(logits), targets)
