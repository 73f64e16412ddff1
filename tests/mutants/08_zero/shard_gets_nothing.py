"""Whoever gathers in plain code: autograd does not follow messages."""

import math

import torch
import torch.distributed as dist

TASK = "08.stage3"
HINT = "shard_gets_nothing"


def sharded_linear(x, shard, shape):
    parts = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, shard.detach())
    weight = torch.cat(parts)[: math.prod(shape)].view(shape)
    return x @ weight.T
