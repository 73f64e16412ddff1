"""Zeros first, the numbers into them, and a row of what is then a matrix."""

import torch

TASK = "08.shard"


def shard(tensors, rank, world_size):
    num_elements = sum(tensor.numel() for tensor in tensors)
    length = (num_elements + world_size - 1) // world_size
    whole = torch.zeros(world_size, length, dtype=tensors[0].dtype)
    whole.view(-1)[:num_elements] = torch.cat([tensor.reshape(-1) for tensor in tensors])
    return whole[rank].clone()
