"""Whoever forgets that all_reduce adds: right on one rank, N times too large on N."""

import torch.distributed as dist

TASK = "03.average"
HINT = "sum_for_mean"


def average_gradients(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
