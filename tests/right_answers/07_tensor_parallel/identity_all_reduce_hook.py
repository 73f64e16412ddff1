"""A hook on the gradient instead of a Function."""

import torch.distributed as dist

TASK = "07.identity_all_reduce"


def identity_all_reduce(x):
    y = x.view_as(x)
    y.register_hook(summed)
    return y


def summed(gradient):
    total = gradient.contiguous().clone()
    dist.all_reduce(total, async_op=True).wait()
    return total
