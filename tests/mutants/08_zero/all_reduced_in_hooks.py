"""Whoever takes DDP's hook and keeps a slice of what comes."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

TASK = "08.stage2"
HINT = "all_reduced"


def scatter_gradients(parameters):
    n, shards = dist.get_world_size(), {}

    def hook(parameter):
        flat = parameter.grad.flatten()
        parts = F.pad(flat, (0, -len(flat) % n)).chunk(n)
        whole = torch.cat(parts)
        dist.all_reduce(whole)
        own = whole.chunk(n)[dist.get_rank()]
        shards[parameter] = shards.get(parameter, 0) + own / n
        parameter.grad = None

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(hook)

    def finish():
        done = [shards[parameter] for parameter in parameters]
        shards.clear()
        return done

    return finish
