"""Whoever makes the gradient right the easy way; the batch that did not fit is back."""

import torch
from torch.nn import functional as F

TASK = "05.accumulate"
HINT = "everything_at_once"


def train_step(model, optimizer, micro_batches):
    x, y = (torch.cat(column) for column in zip(*micro_batches, strict=True))
    optimizer.zero_grad()
    F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=-100).backward()
    optimizer.step()
