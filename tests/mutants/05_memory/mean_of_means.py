"""Whoever divides the loss by the number of micro-batches, as every tutorial does."""

from torch.nn import functional as F

TASK = "05.accumulate"
HINT = "mean_of_means"


def train_step(model, optimizer, micro_batches):
    optimizer.zero_grad()
    for x, y in micro_batches:
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=-100)
        (loss / len(micro_batches)).backward()
    optimizer.step()
