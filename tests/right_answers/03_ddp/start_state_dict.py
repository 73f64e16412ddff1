"""The state_dict's tensors are the model's own; buffers once more, for those that it lacks."""

import torch.distributed as dist

TASK = "03.start"


def start_equal(model):
    for tensor in [*model.state_dict().values(), *model.buffers()]:
        dist.broadcast(tensor, src=0)
