"""Whoever takes the scaler of one GPU to a sharded model."""

import torch

TASK = "04.overflow"
HINT = "flag_not_reduced"


def step_together(optimizer, parameters, scale):
    for p in parameters:
        p.grad /= scale
    found = torch.tensor(float(any(not p.grad.isfinite().all() for p in parameters)))
    if found > 0:
        return scale / 2
    optimizer.step()
    return scale
