"""Whoever leaves zero_grad to the caller."""

import copy

TASK = "02.step"
HINT = "not_cleared"


def copy_of(module):
    twin = copy.copy(module)
    twin._parameters = {name: p.clone() for name, p in module._parameters.items()}
    twin._modules = {name: copy_of(child) for name, child in module._modules.items()}
    return twin


def train_step(model, optimizer, x, y, num_devices):
    total = 0
    for piece, target in zip(x.chunk(num_devices), y.chunk(num_devices), strict=True):
        total = total + ((copy_of(model)(piece) - target) ** 2).sum()
    loss = total / len(x)
    loss.backward()
    optimizer.step()
    return loss
