"""Whoever knows that DDP averages, and averages the weights too."""

import torch.distributed as dist

TASK = "03.start"
HINT = "averaged_at_start"


def start_equal(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.data)
        parameter.data /= dist.get_world_size()
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)
