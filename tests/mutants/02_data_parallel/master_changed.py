"""Whoever takes copy.copy for a copy: the dict of parameters is still the master's."""

import copy

TASK = "02.replicate"
HINT = "master_changed"


def copy_of(module, is_master):
    twin = copy.copy(module)
    for name, parameter in module._parameters.items():
        twin._parameters[name] = parameter.clone()
    twin._buffers = module._buffers if is_master else {name: b.clone() for name, b in module._buffers.items()}
    twin._modules = {name: copy_of(child, is_master) for name, child in module._modules.items()}
    return twin


def replicate(model, num_devices):
    return [copy_of(model, device == 0) for device in range(num_devices)]
