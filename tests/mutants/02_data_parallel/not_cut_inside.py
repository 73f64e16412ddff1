"""Whoever cuts the values of the dict and forgets that a value may hold tensors too."""

import torch

TASK = "02.scatter"
HINT = "not_cut_inside"


def scatter(batch, num_devices):
    if isinstance(batch, torch.Tensor):
        return list(batch.chunk(num_devices))
    columns = [v.chunk(num_devices) if torch.is_tensor(v) else [v] * num_devices for v in batch.values()]
    return [dict(zip(batch, row, strict=True)) for row in zip(*columns, strict=False)]
