"""Whoever sends the gradient back to all, as a broadcast: the shapes do not fit."""

import torch

TASK = "02.gather"
HINT = "whole_gradient"


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, send, *outputs):
        ctx.send, ctx.lengths = send, [len(output) for output in outputs]
        return torch.cat([send(output, device, 0) for device, output in enumerate(outputs)])

    @staticmethod
    def backward(ctx, gradient):
        return None, *(ctx.send(gradient, 0, device) for device in range(len(ctx.lengths)))


def gather(outputs, send):
    return Gather.apply(send, *outputs)
