"""Six programs of two ranks, of which chapter 01 asks: which stand still on NCCL? x is sent, y receives."""

import torch.distributed as dist


def a(rank, x, y):
    dist.send(x, 1 - rank)
    dist.recv(y, 1 - rank)


def b(rank, x, y):
    for work in [dist.isend(x, 1 - rank), dist.irecv(y, 1 - rank)]:
        work.wait()


def c(rank, x, y):
    both = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, y, 1 - rank)]
    for work in dist.batch_isend_irecv(both):
        work.wait()


def d(rank, x, y):
    calls = [(dist.send, x), (dist.recv, y)]
    for call, tensor in calls if rank == 0 else calls[::-1]:
        call(tensor, 1 - rank)


def e(rank, x, y):
    call, tags = (dist.isend, [1, 2]) if rank == 0 else (dist.irecv, [2, 1])
    for work in [call(tensor, 1 - rank, tag=tag) for tensor, tag in zip([x, y], tags, strict=True)]:
        work.wait()


def f(rank, x, y):
    groups = [None, dist.new_group([0, 1])]  # None: the group of all ranks
    for group in groups if rank == 0 else groups[::-1]:
        dist.all_reduce(x, group=group)
