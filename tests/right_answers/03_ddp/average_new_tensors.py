"""Divides first, into new tensors, and assigns .grad."""

import torch.distributed as dist

TASK = "03.average"


def average_gradients(model):
    share = {name: p.grad / dist.get_world_size() for name, p in model.named_parameters() if p.grad is not None}
    for tensor in share.values():
        dist.all_reduce(tensor)
    for name, p in model.named_parameters():
        p.grad = share.get(name)
