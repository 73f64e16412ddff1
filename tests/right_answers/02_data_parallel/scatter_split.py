"""Rounds up by hand, and asks for each piece of each value."""

import torch

TASK = "02.scatter"


def length_of(batch):
    if torch.is_tensor(batch):
        return len(batch)
    values = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, tuple) else ()
    return max(map(length_of, values), default=0)


def rows_of(batch, start, stop):
    if torch.is_tensor(batch):
        return batch[start:stop].clone()
    if isinstance(batch, dict):
        return {name: rows_of(value, start, stop) for name, value in batch.items()}
    if isinstance(batch, tuple):
        return tuple(rows_of(value, start, stop) for value in batch)
    return batch


def scatter(batch, num_devices):
    length = length_of(batch)
    size = (length + num_devices - 1) // num_devices
    return [rows_of(batch, start, start + size) for start in range(0, length, size)]
