"""Whoever takes the own part of the own gradient, and sends nothing."""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F

TASK = "08.stage3"
HINT = "own_gradient"


def gather(shard, shape):
    parts = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, shard)
    return torch.cat(parts)[: math.prod(shape)].view(shape)


class ShardedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard, shape):
        ctx.save_for_backward(x, shard)
        ctx.shape = shape
        return x @ gather(shard, shape).T

    @staticmethod
    def backward(ctx, grad_y):
        x, shard = ctx.saved_tensors
        n = dist.get_world_size()
        flat = (grad_y.T @ x).flatten()
        flat = F.pad(flat, (0, n * len(shard) - len(flat)))
        own = flat.chunk(n)[dist.get_rank()]
        return grad_y @ gather(shard, ctx.shape), own, None


def sharded_linear(x, shard, shape):
    return ShardedLinear.apply(x, shard, shape)
