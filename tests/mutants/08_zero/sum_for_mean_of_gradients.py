"""Whoever forgets that a reduce-scatter adds."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

TASK = "08.stage2"
HINT = "sum_for_mean"


def scatter_gradients(parameters):
    n, shards = dist.get_world_size(), {}

    def hook(parameter):
        flat = parameter.grad.flatten()
        parts = F.pad(flat, (0, -len(flat) % n)).chunk(n)
        own = torch.empty_like(parts[0])
        dist.reduce_scatter(own, list(parts))
        shards[parameter] = shards.get(parameter, 0) + own
        parameter.grad = None

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(hook)

    def finish():
        done = [shards[parameter] for parameter in parameters]
        shards.clear()
        return done

    return finish
