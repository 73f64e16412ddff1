"""Whoever waits until backward is over: then all gradients were there at once."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

TASK = "08.stage2"
HINT = "after_backward"


def scatter_gradients(parameters):
    n, shards = dist.get_world_size(), {}

    def send(parameter):
        flat = parameter.grad.flatten()
        parts = F.pad(flat, (0, -len(flat) % n)).chunk(n)
        own = torch.empty_like(parts[0])
        dist.reduce_scatter(own, list(parts))
        shards[parameter] = shards.get(parameter, 0) + own / n
        parameter.grad = None

    def finish():
        for parameter in parameters:
            send(parameter)
        done = [shards[parameter] for parameter in parameters]
        shards.clear()
        return done

    return finish
