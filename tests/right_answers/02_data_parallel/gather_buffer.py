"""Writes the rows into a tensor made beforehand, and slices the gradient."""

import torch

TASK = "02.gather"


def gather(outputs, send):
    ends = torch.tensor([len(output) for output in outputs]).cumsum(0).tolist()

    class Together(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *outputs):
            whole = outputs[0].new_empty(ends[-1], *outputs[0].shape[1:])
            for i, output in enumerate(outputs):
                whole[ends[i] - len(output) : ends[i]] = output if i == 0 else send(output, i, 0)
            return whole

        @staticmethod
        def backward(ctx, gradient):
            starts = [0, *ends]
            return tuple(send(gradient[starts[i] : end], 0, i) for i, end in enumerate(ends))

    return Together.apply(*outputs)
