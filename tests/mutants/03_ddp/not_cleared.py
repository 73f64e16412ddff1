"""Whoever forgets zero_grad: the step before is added in."""

import torch
import torch.distributed as dist

TASK = "03.accumulate"
HINT = "not_cleared"


def train_step(model, optimizer, micro_batches):
    total = torch.tensor(sum(len(x) for x, _ in micro_batches))
    dist.all_reduce(total)
    for x, y in micro_batches:
        loss = ((model(x) - y) ** 2).sum() / total
        loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
