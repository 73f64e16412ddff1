"""Whoever takes `.mean()`, the loss that everybody types: it divides by the micro-batch and by the outputs as well."""

import torch.distributed as dist

TASK = "03.accumulate"
HINT = "mean_of_means"


def train_step(model, optimizer, micro_batches):
    optimizer.zero_grad()
    for x, y in micro_batches:
        loss = ((model(x) - y) ** 2).mean() / len(micro_batches)
        loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    optimizer.step()
