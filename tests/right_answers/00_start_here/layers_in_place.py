import torch
import torch.distributed as dist

TASK = "00.layers"


def sum_layers(gradients):
    like = next(one for one in gradients.values() if one is not None)
    for name, gradient in gradients.items():
        if gradient is None:
            gradients[name] = torch.zeros_like(like)
        dist.all_reduce(gradients[name])
