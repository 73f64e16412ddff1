"""Whoever clears the gradients in the loop."""

import torch

TASK = "04.order"
HINT = "last_micro_batch_only"


def train_step(model, optimizer, scaler, micro_batches, max_norm):
    for x, y in micro_batches:
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean() / len(micro_batches)
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
