"""Whoever reads src as 'where am I' and passes this rank's own number."""

import torch.distributed as dist

TASK = "03.start"
HINT = "own_root"


def start_equal(model):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=dist.get_rank())
