"""Whoever writes the way out and forgets the way back: on GPUs autograd refuses a gradient of another device."""

import torch

TASK = "02.gather"
HINT = "gradient_stays"


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, send, *outputs):
        ctx.send, ctx.lengths = send, [len(output) for output in outputs]
        return torch.cat([send(output, device, 0) for device, output in enumerate(outputs)])

    @staticmethod
    def backward(ctx, gradient):
        pieces = gradient.split(ctx.lengths)
        return None, *pieces


def gather(outputs, send):
    return Gather.apply(send, *outputs)
