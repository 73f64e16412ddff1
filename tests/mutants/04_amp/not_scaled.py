"""Whoever calls backward on the loss itself."""

import torch

TASK = "04.order"
HINT = "not_scaled"


def train_step(model, optimizer, scaler, micro_batches, max_norm):
    optimizer.zero_grad()
    for x, y in micro_batches:
        loss = ((model(x) - y) ** 2).mean() / len(micro_batches)
        loss.backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
