"""One function a message, and autograd's own cat, as the course's package does."""

import torch

TASK = "02.gather"


class Send(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, send, source, destination):
        ctx.way = send, destination, source
        return send(tensor, source, destination)

    @staticmethod
    def backward(ctx, gradient):
        send, source, destination = ctx.way
        return send(gradient, source, destination), None, None, None


def gather(outputs, send):
    arrived = [Send.apply(output, send, i, 0) if i else output for i, output in enumerate(outputs)]
    return torch.cat(arrived, dim=0)
