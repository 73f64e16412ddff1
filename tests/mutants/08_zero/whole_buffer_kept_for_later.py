"""Whoever collects what was sent, to wait for it at the end."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

TASK = "08.stage2"
HINT = "whole_buffer_kept"


def scatter_gradients(parameters):
    n, shards, sent = dist.get_world_size(), {}, []

    def hook(parameter):
        flat = parameter.grad.flatten()
        parts = F.pad(flat, (0, -len(flat) % n)).chunk(n)
        own = torch.empty_like(parts[0])
        dist.reduce_scatter(own, list(parts))
        shards[parameter] = shards.get(parameter, 0) + own / n
        sent.append(parts)
        parameter.grad = None

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(hook)

    def finish():
        done = [shards[parameter] for parameter in parameters]
        shards.clear()
        sent.clear()
        return done

    return finish
