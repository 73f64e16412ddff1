"""Never calls unscale_: the threshold is scaled instead, and step() unscales."""

import torch

TASK = "04.order"


def train_step(model, optimizer, scaler, micro_batches, max_norm):
    optimizer.zero_grad()
    k = len(micro_batches)
    for x, y in micro_batches:
        scaler.scale((model(x) - y).pow(2).mean().div(k)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm * scaler.get_scale())
    scaler.step(optimizer)
    scaler.update()
