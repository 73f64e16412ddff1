"""Whoever divides in the hook and again in finish()."""

import torch.distributed as dist

TASK = "03.overlap"
HINT = "divided_twice"


def overlap_gradients(model):
    works = []

    def hook(parameter):
        parameter.grad /= dist.get_world_size()
        works.append((parameter, dist.all_reduce(parameter.grad, async_op=True)))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(hook)

    def finish():
        for parameter, work in works:
            work.wait()
            parameter.grad /= dist.get_world_size()
        works.clear()

    return finish
