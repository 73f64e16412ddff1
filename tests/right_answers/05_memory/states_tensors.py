"""Lets torch say how large a dtype is."""

import torch

TASK = "05.states"


def model_states(num_params, precision, zero, dp):
    weight = torch.float32 if precision == "fp32" else torch.bfloat16
    gradient = torch.bfloat16 if precision == "mixed" else torch.float32
    own = (num_params + dp - 1) // dp
    moments = 2 * torch.float32.itemsize
    master = 0 if weight == torch.float32 else torch.float32.itemsize
    return {
        "optimizer": (own if zero > 0 else num_params) * (moments + master),
        "parameters": (own if zero > 2 else num_params) * weight.itemsize,
        "gradients": (own if zero > 1 else num_params) * gradient.itemsize,
    }
