"""Adds up sums, sends gradients and count in one flat message, divides once."""

import torch
import torch.distributed as dist

TASK = "03.accumulate"


def train_step(model, optimizer, micro_batches):
    optimizer.zero_grad(set_to_none=False)
    count = 0
    for inputs, targets in micro_batches:
        torch.nn.functional.mse_loss(model(inputs), targets, reduction="sum").backward()
        count += inputs.shape[0]
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([g.reshape(-1) for g in grads] + [torch.tensor([count], dtype=grads[0].dtype)])
    dist.all_reduce(flat)
    start = 0
    for g in grads:
        g.copy_(flat[start : start + g.numel()].view_as(g) / flat[-1])
        start += g.numel()
    optimizer.step()
