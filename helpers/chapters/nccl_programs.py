"""Holds programs that gloo runs and NCCL may not: six of chapter 01 for two ranks, and a training step of chapter 03.

The chapters show their source, run them on gloo, and check their calls by NCCL's rules. The six are called a to f, as
in the chapter's question. In a to d each rank sends x and receives into y; in e rank 0 sends both, and rank 1 receives
both; f reduces in two groups. Their source is shown as it is, so they have no docstrings.

`step` is the step that chapter 03 shows in a cell, with mistakes on purpose. The chapter runs and checks this copy,
which stays as it is when the learner fixes the cell. FIXES repairs it, old code -> new code, in the order in which the
reports find the mistakes.
"""

from __future__ import annotations

import torch
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


def step(device):
    rank, other, logs = dist.get_rank(), 1 - dist.get_rank(), dist.new_group()
    model = torch.nn.Linear(4, 4).to(device)
    loss = model(torch.ones(8, 4)).square().mean()
    loss.backward()
    grad, total, row = model.weight.grad, loss.detach(), torch.zeros(4, device=device)
    sums = [(grad, None), (total, logs)] if rank == 0 else [(total, logs), (grad, None)]
    for work in [dist.all_reduce(x, group=group, async_op=True) for x, group in sums]:
        work.wait()
    works = [dist.isend(grad[0], other)]
    dist.recv(row, other)
    call, tags = (dist.isend, [1, 2]) if rank == 0 else (dist.irecv, [2, 1])
    for work in works + [call(grad[tag], other, tag=tag) for tag in tags]:
        work.wait()
    return total.numpy()


BATCH = "[dist.P2POp(dist.isend, grad[0], other), dist.P2POp(dist.irecv, row, other)]"
FIXES = {
    "torch.ones(8, 4)": "torch.ones(8, 4, device=device)",
    "total.numpy()": "total.cpu().numpy()",
    " if rank == 0 else [(total, logs), (grad, None)]": "",
    "[dist.isend(grad[0], other)]\n    dist.recv(row, other)": f"dist.batch_isend_irecv(\n        {BATCH})",
    "[2, 1]": "[1, 2]",
}
