"""Whoever takes the hook's argument for the gradient, as plain tensor hooks have it."""

import torch.distributed as dist

TASK = "03.overlap"
HINT = "parameter_for_gradient"


def overlap_gradients(model):
    works = []

    def hook(parameter):
        works.append((parameter, dist.all_reduce(parameter.data, async_op=True)))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(hook)

    def finish():
        for parameter, work in works:
            work.wait()
            parameter.grad /= dist.get_world_size()
        works.clear()

    return finish
