"""Whoever thinks of the other cut, whose parts stand side by side."""

import torch
import torch.distributed as dist

TASK = "07.all_reduce_identity"
HINT = "gathers_the_parts"


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        ctx.size = x.shape[-1]
        return torch.cat(parts, dim=-1)

    @staticmethod
    def backward(ctx, gradient):
        start = dist.get_rank() * ctx.size
        return gradient[..., start : start + ctx.size]


def all_reduce_identity(x):
    return Leave.apply(x)
