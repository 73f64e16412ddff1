"""Whoever writes async_op=True and waits in the same line."""

import torch.distributed as dist

TASK = "03.overlap"
HINT = "waits_in_hook"


def overlap_gradients(model):
    works = []

    def hook(parameter):
        dist.all_reduce(parameter.grad, async_op=True).wait()
        works.append(parameter)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(hook)

    def finish():
        for parameter in works:
            parameter.grad /= dist.get_world_size()
        works.clear()

    return finish
