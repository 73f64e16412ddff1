"""A step that gloo runs and GPUs with NCCL do not, as chapter 03 shows it, and its mends in the order of the reports.

The chapter's own rehearsals take this copy, so they stay whole while the learner mends the cell.
"""

import torch
import torch.distributed as dist


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


_BATCH = "[dist.P2POp(dist.isend, grad[0], other), dist.P2POp(dist.irecv, row, other)]"
MENDS = {
    "torch.ones(8, 4)": "torch.ones(8, 4, device=device)",
    "total.numpy()": "total.cpu().numpy()",
    " if rank == 0 else [(total, logs), (grad, None)]": "",
    "[dist.isend(grad[0], other)]\n    dist.recv(row, other)": f"dist.batch_isend_irecv(\n        {_BATCH})",
    "[2, 1]": "[1, 2]",
}
