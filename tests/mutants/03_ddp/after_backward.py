"""Whoever leaves the hook empty and does the work of the first task in finish()."""

import torch.distributed as dist

TASK = "03.overlap"
HINT = "after_backward"


def overlap_gradients(model):
    ready = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(ready.append)

    def finish():
        works = [dist.all_reduce(parameter.grad, async_op=True) for parameter in ready]
        for parameter, work in zip(ready, works, strict=True):
            work.wait()
            parameter.grad /= dist.get_world_size()
        ready.clear()

    return finish
