"""A reduce-scatter, an all-gather that keeps a list, torch.cat, and one copy at the end."""

import torch
import torch.distributed as dist

TASK = "01.all_reduce"


def exchange(leaving, like):
    rank, n = dist.get_rank(), dist.get_world_size()
    box = torch.empty_like(like)
    sending = dist.isend(leaving, (rank + 1) % n)
    dist.irecv(box, (rank - 1) % n).wait()
    sending.wait()
    return box


def reduce_scatter(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    pieces = torch.tensor_split(tensor, n)
    running = pieces[rank - 1].clone()
    for hop in range(2, n + 1):
        mine = pieces[(rank - hop) % n]
        running = exchange(running, mine) + mine
    return running


def all_reduce(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    pieces = list(torch.tensor_split(tensor, n))
    pieces[rank] = reduce_scatter(tensor)
    for hop in range(n - 1):
        coming = (rank - hop - 1) % n
        pieces[coming] = exchange(pieces[(rank - hop) % n], pieces[coming])
    tensor.copy_(torch.cat(pieces))
