"""Whoever knows the answer by name."""

import torch.distributed as dist

TASK = "01.all_reduce"
HINT = "calls_a_collective"


def all_reduce(tensor):
    dist.all_reduce(tensor)
