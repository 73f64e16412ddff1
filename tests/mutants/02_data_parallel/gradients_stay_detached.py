"""Whoever clones and detaches, out of habit, and makes it a Parameter again."""

import copy

from torch import nn

TASK = "02.replicate"
HINT = "gradients_stay"


def copy_of(module, is_master):
    twin = copy.copy(module)
    twin._parameters = {name: nn.Parameter(p.detach().clone()) for name, p in module._parameters.items()}
    twin._buffers = module._buffers if is_master else {name: b.clone() for name, b in module._buffers.items()}
    twin._modules = {name: copy_of(child, is_master) for name, child in module._modules.items()}
    return twin


def replicate(model, num_devices):
    return [copy_of(model, device == 0) for device in range(num_devices)]
