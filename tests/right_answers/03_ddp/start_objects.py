"""Sends the whole state as one object and loads it."""

import torch.distributed as dist

TASK = "03.start"


def start_equal(model):
    box = [model.state_dict() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    model.load_state_dict(box[0])
