"""Means in the replicas, weighted by their examples; the loss as a number."""

import copy

import torch

TASK = "02.step"


def train_step(model, optimizer, x, y, num_devices):
    for parameter in model.parameters():
        parameter.grad = None
    losses, rows = [], []
    for piece, target in zip(x.chunk(num_devices), y.chunk(num_devices), strict=True):
        twin, weights = copy.deepcopy(model), {name: p.clone() for name, p in model.named_parameters()}
        output = torch.func.functional_call(twin, weights, (piece,))
        losses.append((output - target).pow(2).sum(dim=1).mean())
        rows.append(len(piece))
    loss = torch.stack(losses) @ torch.tensor(rows, dtype=x.dtype) / sum(rows)
    loss.backward()
    optimizer.step()
    return loss.item()
