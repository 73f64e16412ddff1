"""Whoever takes len // num_devices rows a piece: right as long as the batch divides."""

import torch

TASK = "02.scatter"
HINT = "last_piece_dropped"


def scatter(batch, num_devices):
    if isinstance(batch, torch.Tensor):
        size = len(batch) // num_devices
        return [batch[i * size : (i + 1) * size] for i in range(num_devices)]
    if isinstance(batch, tuple):
        return list(zip(*(scatter(value, num_devices) for value in batch), strict=False))
    if isinstance(batch, dict):
        pieces = [scatter(value, num_devices) for value in batch.values()]
        return [dict(zip(batch, row, strict=True)) for row in zip(*pieces, strict=False)]
    return [batch] * num_devices
