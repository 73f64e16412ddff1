"""Starts all of them, then waits."""

import torch.distributed as dist

TASK = "03.average"


def average_gradients(model):
    works = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
    for work, p in zip(works, model.parameters(), strict=True):
        work.wait()
        p.grad.div_(dist.get_world_size())
