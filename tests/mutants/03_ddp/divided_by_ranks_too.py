"""Whoever divides by all examples and then does what DDP does."""

import torch
import torch.distributed as dist

TASK = "03.accumulate"
HINT = "divided_by_ranks_too"


def train_step(model, optimizer, micro_batches):
    total = torch.tensor(sum(len(x) for x, _ in micro_batches))
    dist.all_reduce(total)
    optimizer.zero_grad()
    for x, y in micro_batches:
        loss = ((model(x) - y) ** 2).sum() / total
        loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    optimizer.step()
