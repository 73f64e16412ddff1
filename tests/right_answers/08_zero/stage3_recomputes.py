"""Backward computes the layer once more on what it gathered, and lets autograd differentiate it."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

TASK = "08.stage3"


class Sharded(torch.autograd.Function):
    @staticmethod
    def whole(shard, shape):
        line = torch.empty(dist.get_world_size() * shard.numel(), dtype=shard.dtype)
        dist.all_gather_into_tensor(line, shard.detach())
        return line[: shape[0] * shape[1]].reshape(shape)

    @staticmethod
    def forward(ctx, x, shard, shape):
        ctx.x, ctx.shard, ctx.shape = x, shard, shape
        return F.linear(x, Sharded.whole(shard, shape))

    @staticmethod
    def backward(ctx, grad_y):
        n = dist.get_world_size()
        x, weight = ctx.x.detach().requires_grad_(), Sharded.whole(ctx.shard, ctx.shape).requires_grad_()
        with torch.enable_grad():
            product = (F.linear(x, weight) * grad_y).sum()
        grad_x, grad_w = torch.autograd.grad(product, (x, weight))
        line = torch.zeros(n * len(ctx.shard), dtype=grad_w.dtype)
        line[: grad_w.numel()] = grad_w.flatten() / n
        own = torch.empty_like(ctx.shard)
        dist.reduce_scatter(own, list(line.chunk(n)))
        return grad_x, own, None


sharded_linear = Sharded.apply
