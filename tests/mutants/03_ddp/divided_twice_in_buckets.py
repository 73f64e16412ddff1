"""Whoever divides what goes in and what comes out."""

import torch
import torch.distributed as dist

TASK = "03.buckets"
HINT = "divided_twice"


def send(bucket):
    flat = torch.cat([g.flatten() for g in bucket]) / dist.get_world_size()
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
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
