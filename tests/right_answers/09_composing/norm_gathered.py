"""One number of each rank is gathered, so that no reduction need be chosen."""

import math

import torch
import torch.distributed as dist

TASK = "09.norm"


def gradient_norm(gradients, placements, groups, p):
    shares = [0.0]
    for gradient, lies in zip(gradients, placements, strict=True):
        holders = 1
        for axis in lies:
            holders *= groups[axis].size() if lies[axis] == "replicated" else 1
        shares.append(gradient.abs().max().item() if p == math.inf else gradient.abs().pow(p).sum().item() / holders)
    own = torch.tensor([max(shares) if p == math.inf else sum(shares)], dtype=torch.float64)
    every = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(every, own)
    every = [one.item() for one in every]
    return max(every) if p == math.inf else sum(every) ** (1 / p)
