"""Whoever begins the step with update()."""

import torch

TASK = "04.order"
HINT = "update_before_step"


def train_step(model, optimizer, scaler, micro_batches, max_norm):
    optimizer.zero_grad()
    scaler.update()
    for x, y in micro_batches:
        loss = ((model(x) - y) ** 2).mean() / len(micro_batches)
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
