"""Blocking messages in turns: even ranks send first, odd ranks receive first, one direction after the other."""

import torch
import torch.distributed as dist

TASK = "03.rehearsed"


def rehearsed_step(model, x, y):
    rank, size = dist.get_rank(), dist.get_world_size()

    def shifted(row, by):
        got = torch.empty_like(row)
        send, receive = (dist.send, row, (rank + by) % size), (dist.recv, got, (rank - by) % size)
        for call, tensor, peer in (send, receive) if rank % 2 == 0 else (receive, send):
            call(tensor, peer)
        return got

    before = shifted(x[-1].contiguous(), 1)
    after = shifted(x[0].contiguous(), -1)
    near = torch.stack([before, *x, after]).unfold(0, 3, 1).mean(-1)
    errors = (model(near) - y).square()
    errors.mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= size
    total = errors.detach().sum()
    dist.all_reduce(total)
    largest = errors.detach().max()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return total.item(), largest.item() > 9
