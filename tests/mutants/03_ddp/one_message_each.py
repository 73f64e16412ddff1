"""Whoever solves the task before: right values, and every message pays the latency."""

import torch.distributed as dist

TASK = "03.buckets"
HINT = "one_message_each"


def average_in_buckets(gradients, cap):
    for gradient in gradients:
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()
