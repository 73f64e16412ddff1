"""Whoever knows functional_call and calls it on the model itself: threads exchange its weights at the same time."""

import torch

TASK = "02.replicate"
HINT = "module_shared"


def replicate(model, num_devices):
    def replica(device):
        values = {name: p.clone() for name, p in model.named_parameters()}
        if device:
            values |= {name: b.clone() for name, b in model.named_buffers()}
        return lambda x: torch.func.functional_call(model, values, (x,))

    return [replica(device) for device in range(num_devices)]
