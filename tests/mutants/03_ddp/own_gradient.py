"""Whoever binds the mean to a new name: `.grad` still holds the old tensor."""

import torch.distributed as dist

TASK = "03.average"
HINT = "own_gradient"


def average_gradients(model):
    for parameter in model.parameters():
        gradient = parameter.grad / dist.get_world_size()
        dist.all_reduce(gradient)
