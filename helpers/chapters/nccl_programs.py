"""Holds programs that gloo runs and NCCL may not: six of chapter 01, for two ranks.

The chapter shows their source, runs them on gloo, and checks their calls by NCCL's rules. The six are called a to f, as
in the chapter's question. In a to d each rank sends x and receives into y; in e rank 0 sends both, and rank 1 receives
both; f reduces in two groups. Their source is shown as it is, so they have no docstrings.
"""

from __future__ import annotations

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
    if rank == 0:
        dist.send(x, 1)
        dist.recv(y, 1)
    else:
        dist.recv(y, 0)
        dist.send(x, 0)


def e(rank, x, y):
    if rank == 0:
        works = [dist.isend(x, 1, tag=1), dist.isend(y, 1, tag=2)]
    else:
        works = [dist.irecv(y, 0, tag=2), dist.irecv(x, 0, tag=1)]
    for work in works:
        work.wait()


def f(rank, x, y):
    groups = [dist.group.WORLD, dist.new_group([0, 1])]  # two groups of the same two ranks
    for group in groups if rank == 0 else groups[::-1]:
        dist.all_reduce(x, group=group)
