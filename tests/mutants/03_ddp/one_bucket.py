"""Whoever concatenates everything, since one message is cheapest."""

import torch
import torch.distributed as dist

TASK = "03.buckets"
HINT = "one_bucket"


def average_in_buckets(gradients, cap):
    flat = torch.cat([g.flatten() for g in gradients]) / dist.get_world_size()
    dist.all_reduce(flat)
    for g, piece in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        g.copy_(piece.view_as(g))
