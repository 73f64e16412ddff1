"""The state_dict holds parameters and buffers, and its tensors are the model's own."""

import torch.distributed as dist

TASK = "03.start"


def start_equal(model):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)
