"""Sends the whole state as one object and loads it."""

import torch.distributed as dist

TASK = "03.start"


def start_equal(model):
    unsaved = {name: buffer for name, buffer in model.named_buffers() if name not in model.state_dict()}
    box = [(model.state_dict(), unsaved) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    model.load_state_dict(box[0][0])
    for name, buffer in unsaved.items():
        buffer.copy_(box[0][1][name])
