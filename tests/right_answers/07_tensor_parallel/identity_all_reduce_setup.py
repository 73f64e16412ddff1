"""In the newer style, with setup_context; alone on a rank it sends nothing, as Megatron does."""

import torch
import torch.distributed as dist

TASK = "07.identity_all_reduce"


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        if dist.get_world_size() == 1:
            return gradient
        total = gradient + 0.0
        dist.all_reduce(total)
        return total


def identity_all_reduce(x):
    return Enter.apply(x)
