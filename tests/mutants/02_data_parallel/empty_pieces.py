"""Whoever rounds up and loops over all devices: the last ones get nothing, and a forward of nothing fails."""

import torch

TASK = "02.scatter"
HINT = "empty_pieces"


def scatter(batch, num_devices):
    if isinstance(batch, torch.Tensor):
        size = -(-len(batch) // num_devices)
        return [batch[i * size : (i + 1) * size] for i in range(num_devices)]
    if isinstance(batch, tuple):
        return list(zip(*(scatter(value, num_devices) for value in batch), strict=False))
    if isinstance(batch, dict):
        pieces = [scatter(value, num_devices) for value in batch.values()]
        return [dict(zip(batch, row, strict=True)) for row in zip(*pieces, strict=False)]
    return [batch] * num_devices
