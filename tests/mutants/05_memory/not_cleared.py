"""Whoever clears elsewhere, after the step, and relies on somebody having done so."""

from torch.nn import functional as F

TASK = "05.accumulate"
HINT = "not_cleared"


def train_step(model, optimizer, micro_batches):
    total = sum((y != -100).sum() for _, y in micro_batches)
    for x, y in micro_batches:
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=-100, reduction="sum") / total
        loss.backward()
    optimizer.step()
