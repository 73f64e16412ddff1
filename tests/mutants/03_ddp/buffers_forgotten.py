"""Whoever thinks of a model as its parameters: BatchNorm's statistics stay apart."""

import torch.distributed as dist

TASK = "03.start"
HINT = "buffers_forgotten"


def start_equal(model):
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
