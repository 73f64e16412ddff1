"""Whoever adds the replicas' means: right on one device, N times too large on N."""

import copy

TASK = "02.step"
HINT = "sum_for_mean"


def copy_of(module):
    twin = copy.copy(module)
    twin._parameters = {name: p.clone() for name, p in module._parameters.items()}
    twin._modules = {name: copy_of(child) for name, child in module._modules.items()}
    return twin


def train_step(model, optimizer, x, y, num_devices):
    optimizer.zero_grad()
    total = 0
    for piece, target in zip(x.chunk(num_devices), y.chunk(num_devices), strict=True):
        total = total + ((copy_of(model)(piece) - target) ** 2).sum(dim=1).mean()
    loss = total
    loss.backward()
    optimizer.step()
    return loss
