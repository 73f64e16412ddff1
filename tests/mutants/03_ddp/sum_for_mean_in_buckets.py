"""Whoever forgets the division, here too."""

import torch
import torch.distributed as dist

TASK = "03.buckets"
HINT = "sum_for_mean"


def send(bucket):
    flat = torch.cat([g.flatten() for g in bucket])
    dist.all_reduce(flat)
    for g, piece in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
        g.copy_(piece.view_as(g))


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
