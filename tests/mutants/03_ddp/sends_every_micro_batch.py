"""Whoever averages inside the loop: right values, K times the bytes, which no_sync is there to save."""

import torch
import torch.distributed as dist

TASK = "03.accumulate"
HINT = "sends_every_micro_batch"


def train_step(model, optimizer, micro_batches):
    total = torch.tensor(sum(len(x) for x, _ in micro_batches))
    dist.all_reduce(total)
    mean = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for x, y in micro_batches:
        optimizer.zero_grad()
        (((model(x) - y) ** 2).sum() / total).backward()
        for so_far, parameter in zip(mean, model.parameters(), strict=True):
            dist.all_reduce(parameter.grad)
            so_far += parameter.grad
    for so_far, parameter in zip(mean, model.parameters(), strict=True):
        parameter.grad = so_far
    optimizer.step()
