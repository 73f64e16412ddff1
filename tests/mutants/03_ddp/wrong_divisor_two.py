"""Whoever learnt it on two GPUs."""

import torch.distributed as dist

TASK = "03.average"
HINT = "wrong_divisor"


def average_gradients(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad *= 0.5
