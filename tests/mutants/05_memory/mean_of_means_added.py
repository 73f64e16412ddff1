"""The same, without dividing by the number of micro-batches."""

from torch.nn import functional as F

TASK = "05.accumulate"
HINT = "mean_of_means"


def train_step(model, optimizer, micro_batches):
    optimizer.zero_grad()
    for x, y in micro_batches:
        F.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
    optimizer.step()
