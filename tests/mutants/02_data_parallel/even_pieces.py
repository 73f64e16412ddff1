"""Whoever knows numpy's array_split: fair, and not what DataParallel does."""

import torch

TASK = "02.scatter"
HINT = "even_pieces"


def scatter(batch, num_devices):
    if isinstance(batch, torch.Tensor):
        return list(batch.tensor_split(min(num_devices, len(batch))))
    if isinstance(batch, tuple):
        return list(zip(*(scatter(value, num_devices) for value in batch), strict=False))
    if isinstance(batch, dict):
        pieces = [scatter(value, num_devices) for value in batch.values()]
        return [dict(zip(batch, row, strict=True)) for row in zip(*pieces, strict=False)]
    return [batch] * num_devices
