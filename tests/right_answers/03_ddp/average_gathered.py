"""all_gather and a mean: more bytes, the same values."""

import torch
import torch.distributed as dist

TASK = "03.average"


def average_gradients(model):
    for p in filter(lambda p: p.grad is not None, model.parameters()):
        everyone = [torch.empty_like(p.grad) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, p.grad)
        p.grad = torch.stack(everyone).mean(dim=0)
