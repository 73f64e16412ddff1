"""Whoever never lets a bucket exceed its cap."""

import torch
import torch.distributed as dist

TASK = "03.buckets"
HINT = "closes_early"


def send(bucket):
    flat = torch.cat([g.flatten() for g in bucket])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for g, piece in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
        g.copy_(piece.view_as(g))


def average_in_buckets(gradients, cap):
    bucket, size = [], 0
    for g in gradients:
        num_bytes = g.numel() * g.element_size()
        if bucket and size + num_bytes > cap:
            send(bucket)
            bucket, size = [], 0
        bucket.append(g)
        size += num_bytes
    if bucket:
        send(bucket)
