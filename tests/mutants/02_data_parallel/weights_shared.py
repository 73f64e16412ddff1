"""Whoever tests on a CPU: without a copy, there is nothing on the other devices."""

import copy

TASK = "02.replicate"
HINT = "weights_shared"


def copy_of(module, is_master):
    twin = copy.copy(module)
    twin._parameters = dict(module._parameters)
    twin._buffers = module._buffers if is_master else {name: b.clone() for name, b in module._buffers.items()}
    twin._modules = {name: copy_of(child, is_master) for name, child in module._modules.items()}
    return twin


def replicate(model, num_devices):
    return [copy_of(model, device == 0) for device in range(num_devices)]
