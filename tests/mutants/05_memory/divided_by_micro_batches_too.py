"""Whoever knows that accumulation divides by the number of micro-batches, and does that as well."""

from torch.nn import functional as F

TASK = "05.accumulate"
HINT = "divided_by_micro_batches_too"


def train_step(model, optimizer, micro_batches):
    optimizer.zero_grad()
    total = sum((y != -100).sum() for _, y in micro_batches)
    for x, y in micro_batches:
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=-100, reduction="sum") / total
        (loss / len(micro_batches)).backward()
    optimizer.step()
