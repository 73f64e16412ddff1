"""One autograd function for all outputs."""

import torch

TASK = "02.gather"


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, send, *outputs):
        ctx.send, ctx.lengths = send, [len(output) for output in outputs]
        return torch.cat([send(output, device, 0) for device, output in enumerate(outputs)])

    @staticmethod
    def backward(ctx, gradient):
        pieces = gradient.split(ctx.lengths)
        return None, *(ctx.send(piece, 0, device) for device, piece in enumerate(pieces))


def gather(outputs, send):
    return Gather.apply(send, *outputs)
