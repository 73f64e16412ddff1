"""Whoever adds up the losses and runs backward once: right, and every graph lives until then."""

from torch.nn import functional as F

TASK = "05.accumulate"
HINT = "keeps_every_graph"


def train_step(model, optimizer, micro_batches):
    optimizer.zero_grad()
    total, loss = sum((y != -100).sum() for _, y in micro_batches), 0
    for x, y in micro_batches:
        loss = loss + F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=-100, reduction="sum")
    (loss / total).backward()
    optimizer.step()
