"""Divides in the hook and waits at the end."""

import torch.distributed as dist

TASK = "03.overlap"


def overlap_gradients(model):
    pending = []

    def send(p):
        p.grad.mul_(1 / dist.get_world_size())
        pending.append(dist.all_reduce(p.grad, op=dist.ReduceOp.SUM, async_op=True))

    _ = [p.register_post_accumulate_grad_hook(send) for p in model.parameters() if p.requires_grad]

    def done():
        while pending:
            pending.pop().wait()

    return done
