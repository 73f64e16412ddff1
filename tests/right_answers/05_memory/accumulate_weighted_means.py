"""Means, each weighted with its share of the tokens."""

from torch.nn import functional as F

TASK = "05.accumulate"


def train_step(model, optimizer, micro_batches):
    for parameter in model.parameters():
        parameter.grad = None
    counts = [int(y.ne(-100).sum()) for _, y in micro_batches]
    for (x, y), count in zip(micro_batches, counts, strict=True):
        mean = F.cross_entropy(model(x).flatten(end_dim=1), y.flatten())
        (mean * count / sum(counts)).backward()
    optimizer.step()
