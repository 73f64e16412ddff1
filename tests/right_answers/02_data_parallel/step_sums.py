"""Sums in the replicas, one division at the end."""

import copy

TASK = "02.step"


def copy_of(module):
    twin = copy.copy(module)
    twin._parameters = {name: p.clone() for name, p in module._parameters.items()}
    twin._modules = {name: copy_of(child) for name, child in module._modules.items()}
    return twin


def train_step(model, optimizer, x, y, num_devices):
    optimizer.zero_grad()
    total = 0
    for piece, target in zip(x.chunk(num_devices), y.chunk(num_devices), strict=True):
        total = total + ((copy_of(model)(piece) - target) ** 2).sum()
    loss = total / len(x)
    loss.backward()
    optimizer.step()
    return loss
