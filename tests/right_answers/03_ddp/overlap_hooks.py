"""One all-reduce a parameter, divided at the end."""

import torch.distributed as dist

TASK = "03.overlap"


def overlap_gradients(model):
    works = []

    def hook(parameter):
        works.append((parameter, dist.all_reduce(parameter.grad, async_op=True)))

    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(hook)

    def finish():
        for parameter, work in works:
            work.wait()
            parameter.grad /= dist.get_world_size()
        works.clear()

    return finish
