"""Whoever starts everything and waits for nothing."""

import torch.distributed as dist

TASK = "03.overlap"
HINT = "not_finished"


def overlap_gradients(model):
    works = []

    def hook(parameter):
        works.append((parameter, dist.all_reduce(parameter.grad, async_op=True)))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(hook)

    def finish():
        for parameter, _ in works:
            parameter.grad /= dist.get_world_size()
        works.clear()

    return finish
