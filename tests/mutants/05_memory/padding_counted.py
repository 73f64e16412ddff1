"""Whoever divides by y.numel(): cross_entropy leaves padding out, the divisor does not."""

from torch.nn import functional as F

TASK = "05.accumulate"
HINT = "padding_counted"


def train_step(model, optimizer, micro_batches):
    optimizer.zero_grad()
    total = sum(y.numel() for _, y in micro_batches)
    for x, y in micro_batches:
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=-100, reduction="sum") / total
        loss.backward()
    optimizer.step()
