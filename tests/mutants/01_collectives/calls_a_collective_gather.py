"""Whoever gathers everything and picks one: N times the bytes."""

import torch
import torch.distributed as dist

TASK = "01.shift"
HINT = "calls_a_collective"


def shift(tensor):
    everything = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(everything, tensor)
    return everything[dist.get_rank() - 1]
