"""Whoever steps first: the gradients are right in the end, the weights of the ranks have parted."""

import torch
import torch.distributed as dist

TASK = "03.accumulate"
HINT = "reduction_after_step"


def train_step(model, optimizer, micro_batches):
    total = torch.tensor(sum(len(x) for x, _ in micro_batches))
    dist.all_reduce(total)
    optimizer.zero_grad()
    for x, y in micro_batches:
        loss = ((model(x) - y) ** 2).sum() / total
        loss.backward()
    optimizer.step()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
