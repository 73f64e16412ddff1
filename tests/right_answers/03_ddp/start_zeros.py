"""Every rank but 0 adds zeros: a sum that broadcasts."""

import torch.distributed as dist

TASK = "03.start"


def start_equal(model):
    for tensor in model.state_dict().values():
        if dist.get_rank() != 0:
            tensor.zero_()
        dist.all_reduce(tensor)
