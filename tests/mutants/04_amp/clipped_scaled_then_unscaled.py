"""Whoever unscales after the clip."""

import torch

TASK = "04.order"
HINT = "clipped_scaled"


def train_step(model, optimizer, scaler, micro_batches, max_norm):
    optimizer.zero_grad()
    for x, y in micro_batches:
        loss = ((model(x) - y) ** 2).mean() / len(micro_batches)
        scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
