"""Whoever changes the reduction to a sum, and forgets the mean after it."""

from torch.nn import functional as F

TASK = "05.accumulate"
HINT = "not_divided"


def train_step(model, optimizer, micro_batches):
    optimizer.zero_grad()
    for x, y in micro_batches:
        F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=-100, reduction="sum").backward()
    optimizer.step()
