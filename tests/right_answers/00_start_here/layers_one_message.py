import torch
import torch.distributed as dist

TASK = "00.layers"


def sum_layers(gradients):
    zero = torch.zeros(3, dtype=torch.float64)
    flat = torch.stack([zero if one is None else one for one in gradients.values()])
    dist.all_reduce(flat)
    return dict(zip(gradients, flat, strict=True))
