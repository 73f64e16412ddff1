"""Whoever believes that every gradient can be divided by the ranks."""

import torch
import torch.distributed as dist

TASK = "08.stage2"
HINT = "not_padded"


def scatter_gradients(parameters):
    n, shards = dist.get_world_size(), {}

    def hook(parameter):
        flat = parameter.grad.flatten()
        parts = flat.chunk(n)
        own = torch.empty_like(parts[0])
        dist.reduce_scatter(own, list(parts))
        shards[parameter] = shards.get(parameter, 0) + own / n
        parameter.grad = None

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(hook)

    def finish():
        done = [shards[parameter] for parameter in parameters]
        shards.clear()
        return done

    return finish
