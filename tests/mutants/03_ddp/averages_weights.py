"""Whoever averages parameters, as federated learning does."""

import torch.distributed as dist

TASK = "03.average"
HINT = "averages_weights"


def average_gradients(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.data)
        parameter.data /= dist.get_world_size()
