"""Whoever leaves out async_op: the messages start early, and backward waits for each."""

import torch.distributed as dist

TASK = "03.overlap"
HINT = "waits_in_hook"


def overlap_gradients(model):
    def hook(parameter):
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(hook)
    return lambda: None
