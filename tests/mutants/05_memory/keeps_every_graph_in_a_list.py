"""Whoever collects the losses first, to divide them when the number of tokens is known."""

from torch.nn import functional as F

TASK = "05.accumulate"
HINT = "keeps_every_graph"


def train_step(model, optimizer, micro_batches):
    optimizer.zero_grad()
    losses, total = [], 0
    for x, y in micro_batches:
        losses.append(F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=-100, reduction="sum"))
        total += (y != -100).sum()
    for loss in losses:
        (loss / total).backward()
    optimizer.step()
