"""Whoever clears the gradients in the loop, as a loop without accumulation does."""

import torch
import torch.distributed as dist

TASK = "03.accumulate"
HINT = "last_micro_batch_only"


def train_step(model, optimizer, micro_batches):
    total = torch.tensor(sum(len(x) for x, _ in micro_batches))
    dist.all_reduce(total)
    for x, y in micro_batches:
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).sum() / total
        loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
