"""Whoever forgets that torch.cat copies: the means stay in the flat tensor."""

import torch
import torch.distributed as dist

TASK = "03.buckets"
HINT = "own_gradient"


def send(bucket):
    flat = torch.cat([g.flatten() for g in bucket])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()


def average_in_buckets(gradients, cap):
    bucket, size = [], 0
    for g in gradients:
        bucket.append(g)
        size += g.numel() * g.element_size()
        if size >= cap:
            send(bucket)
            bucket, size = [], 0
    if bucket:
        send(bucket)
