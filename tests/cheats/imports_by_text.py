"""Hides the import of the bucket rule in a text that is put together."""

import importlib

import torch
import torch.distributed as dist

TASK = "03.buckets"
SAYS = "import_module"


def average_in_buckets(gradients, cap):
    rule = importlib.import_module(".".join(["helpers", "parallel", "shared", "bucket" + "_rule"]))
    sizes = [gradient.numel() * gradient.element_size() for gradient in gradients]
    for bucket in rule.split_into_buckets(sizes, cap):
        chosen = [gradients[i] for i in bucket]
        flat = torch.cat([gradient.flatten() for gradient in chosen])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for gradient, piece in zip(chosen, flat.split([g.numel() for g in chosen]), strict=True):
            gradient.copy_(piece.view_as(gradient))
