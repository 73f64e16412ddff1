"""With a handle that is waited for."""

import torch
import torch.distributed as dist

TASK = "07.all_reduce_identity"


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        total = torch.empty_like(x).copy_(x)
        dist.all_reduce(total, op=dist.ReduceOp.SUM, async_op=True).wait()
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient.view_as(gradient)


def all_reduce_identity(x):
    return Leave.apply(x)
