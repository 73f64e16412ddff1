"""Whoever reduce-scatters into a slice of the line: the shard keeps all of it."""

import torch.distributed as dist
import torch.nn.functional as F

TASK = "08.stage2"
HINT = "whole_buffer_kept"


def scatter_gradients(parameters):
    n, shards = dist.get_world_size(), {}

    def hook(parameter):
        flat = parameter.grad.flatten()
        parts = F.pad(flat, (0, -len(flat) % n)).chunk(n)
        own = parts[dist.get_rank()]
        dist.reduce_scatter(own, [part.clone() for part in parts])
        own /= n
        if parameter in shards:
            own += shards[parameter]
        shards[parameter] = own
        parameter.grad = None

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(hook)

    def finish():
        done = [shards[parameter] for parameter in parameters]
        shards.clear()
        return done

    return finish
