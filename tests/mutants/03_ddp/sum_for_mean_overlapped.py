"""Whoever waits and forgets the division."""

import torch.distributed as dist

TASK = "03.overlap"
HINT = "sum_for_mean"


def overlap_gradients(model):
    works = []

    def hook(parameter):
        works.append((parameter, dist.all_reduce(parameter.grad, async_op=True)))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(hook)

    def finish():
        for _, work in works:
            work.wait()
        works.clear()

    return finish
