"""Adds up the losses and runs backward once."""

import torch

TASK = "04.order"


def train_step(model, optimizer, scaler, micro_batches, max_norm):
    model.zero_grad()
    losses = torch.stack([((model(x) - y) ** 2).mean() for x, y in micro_batches])
    scaler.scale(losses.mean()).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(list(model.parameters()), max_norm=max_norm)
    scaler.step(optimizer)
    scaler.update()
