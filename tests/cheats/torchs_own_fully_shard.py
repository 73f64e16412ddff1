"""Lets FSDP2 gather and free."""

import torch
from torch.distributed.fsdp import fully_shard

TASK = "08.stage3"
SAYS = "torch.distributed.fsdp"


def sharded_linear(x, shard, shape):
    layer = torch.nn.Linear(shape[1], shape[0], bias=False, dtype=x.dtype)
    return fully_shard(layer)(x)
