"""Whoever forgets to hand the shards out."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

TASK = "08.stage2"
HINT = "nothing_returned"


def scatter_gradients(parameters):
    n, shards = dist.get_world_size(), {}

    def hook(parameter):
        flat = parameter.grad.flatten()
        parts = F.pad(flat, (0, -len(flat) % n)).chunk(n)
        own = torch.empty_like(parts[0])
        dist.reduce_scatter(own, list(parts))
        shards[parameter] = shards.get(parameter, 0) + own / n
        parameter.grad = None

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(hook)

    def finish():
        shards.clear()

    return finish
