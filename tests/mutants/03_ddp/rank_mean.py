"""Whoever gets the micro-batches right and forgets that ranks differ too; so do training scripts with DDP's mean."""

import torch
import torch.distributed as dist

TASK = "03.accumulate"
HINT = "rank_mean"


def train_step(model, optimizer, micro_batches):
    total = torch.tensor(sum(len(x) for x, _ in micro_batches))
    optimizer.zero_grad()
    for x, y in micro_batches:
        loss = ((model(x) - y) ** 2).sum() / total
        loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    optimizer.step()
