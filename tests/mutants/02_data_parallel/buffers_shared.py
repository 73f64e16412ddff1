"""Whoever copies parameters alone: N replicas write BatchNorm's statistics, N times a step."""

import copy

TASK = "02.replicate"
HINT = "buffers_shared"


def copy_of(module, is_master):
    twin = copy.copy(module)
    twin._parameters = {name: p if p is None else p.clone() for name, p in module._parameters.items()}
    twin._buffers = dict(module._buffers)
    twin._modules = {name: copy_of(child, is_master) for name, child in module._modules.items()}
    return twin


def replicate(model, num_devices):
    return [copy_of(model, device == 0) for device in range(num_devices)]
