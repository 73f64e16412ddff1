"""Every rank but 0 adds zeros: a sum that broadcasts."""

import torch.distributed as dist

TASK = "03.start"


def start_equal(model):
    for tensor in [*(p.data for p in model.parameters()), *model.buffers()]:
        if dist.get_rank() != 0:
            tensor.zero_()
        dist.all_reduce(tensor)
