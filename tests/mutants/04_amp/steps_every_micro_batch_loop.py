"""Whoever takes the loop of a script in which every batch is a step."""

import torch

TASK = "04.order"
HINT = "steps_every_micro_batch"


def train_step(model, optimizer, scaler, micro_batches, max_norm):
    for x, y in micro_batches:
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
