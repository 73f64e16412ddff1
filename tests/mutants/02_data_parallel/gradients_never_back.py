"""Whoever copies with deepcopy: the optimizer has nothing to do, and the loss stays where it is."""

import copy

TASK = "02.step"
HINT = "gradients_never_back"


def train_step(model, optimizer, x, y, num_devices):
    optimizer.zero_grad()
    pieces = zip(x.chunk(num_devices), y.chunk(num_devices), strict=True)
    loss = sum(((copy.deepcopy(model)(piece) - target) ** 2).sum() for piece, target in pieces) / len(x)
    loss.backward()
    optimizer.step()
    return loss
