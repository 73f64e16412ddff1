"""New modules around clones, as torch does it."""

import copy

TASK = "02.replicate"


def copy_of(module, is_master):
    twin = copy.copy(module)
    twin._parameters = {name: p if p is None else p.clone() for name, p in module._parameters.items()}
    twin._buffers = module._buffers if is_master else {name: b.clone() for name, b in module._buffers.items()}
    twin._modules = {name: copy_of(child, is_master) for name, child in module._modules.items()}
    return twin


def replicate(model, num_devices):
    return [copy_of(model, device == 0) for device in range(num_devices)]
