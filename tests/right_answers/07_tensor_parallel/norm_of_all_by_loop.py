"""Copies counted by rank 0 alone, and a number in place of a tensor returned."""

import torch
import torch.distributed as dist

TASK = "07.norm"


def norm_of_all(gradients, copies):
    total = torch.zeros((), dtype=torch.float64)
    for gradient, count in zip(gradients, copies, strict=True):
        if count == 1 or dist.get_rank() == 0:
            total += (gradient.double() ** 2).sum()
    dist.all_reduce(total)
    return total.item() ** 0.5
