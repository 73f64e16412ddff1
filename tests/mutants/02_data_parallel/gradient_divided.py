"""Whoever has DDP's mean in mind."""

import torch

TASK = "02.gather"
HINT = "gradient_divided"


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, send, *outputs):
        ctx.send, ctx.lengths = send, [len(output) for output in outputs]
        return torch.cat([send(output, device, 0) for device, output in enumerate(outputs)])

    @staticmethod
    def backward(ctx, gradient):
        pieces = gradient.split(ctx.lengths)
        return None, *(ctx.send(piece / len(pieces), 0, device) for device, piece in enumerate(pieces))


def gather(outputs, send):
    return Gather.apply(send, *outputs)
