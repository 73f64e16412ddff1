"""One batch per direction, gradients under way at once, and the loss reduced to rank 0 first."""

import torch
import torch.distributed as dist

TASK = "03.rehearsed"


def rehearsed_step(model, x, y):
    rank, size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % size, (rank + 1) % size
    before, after = torch.empty_like(x[0]), torch.empty_like(x[0])
    for row, to, into, source in ((x[-1], right, before, left), (x[0], left, after, right)):
        pair = [dist.P2POp(dist.irecv, into, source), dist.P2POp(dist.isend, row, to)]
        for work in dist.batch_isend_irecv(pair):
            work.wait()
    errors = (model(torch.stack([before, *x, after]).unfold(0, 3, 1).mean(-1)) - y).square()
    errors.mean().backward()
    works = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
    for p, work in zip(model.parameters(), works, strict=True):
        work.wait()
        p.grad.div_(size)
    total = errors.detach().sum()
    dist.reduce(total, dst=0)
    dist.broadcast(total, src=0)
    flag = (errors > 9).any().to(torch.uint8)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return total, flag
