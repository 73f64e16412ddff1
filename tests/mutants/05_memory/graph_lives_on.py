"""Whoever once got 'backward through the graph a second time' and has written retain_graph=True since."""

from torch.nn import functional as F

TASK = "05.accumulate"
HINT = "graph_lives_on"


def train_step(model, optimizer, micro_batches):
    optimizer.zero_grad()
    total = sum((y != -100).sum() for _, y in micro_batches)
    for x, y in micro_batches:
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=-100, reduction="sum") / total
        loss.backward(retain_graph=True)
    optimizer.step()
