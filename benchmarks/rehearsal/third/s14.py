"""Multi-task training: in each step every worker has a batch of one task."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

TASKS = ("sum", "sign")


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(7, 28), nn.ReLU())
        self.heads = nn.ModuleDict({"sum": nn.Linear(28, 1), "sign": nn.Linear(28, 2)})

    def forward(self, x, task):
        return self.heads[task](self.trunk(x))


def task_loss(task, out, x):
    if task == "sum":
        return nn.functional.mse_loss(out, x.sum(dim=1, keepdim=True))
    return nn.functional.cross_entropy(out, (x[:, 0] > 0).long())


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank = dist.get_rank()

    torch.manual_seed(0)
    model = DDP(MultiTask().cuda(), device_ids=[local_rank], find_unused_parameters=True)
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(rank)
    sums = {t: [0.0, 0] for t in TASKS}

    for step in range(12):
        # some steps have both tasks, in others the workers agree
        task = TASKS[(step // 2 + rank * step) % 2]
        x = torch.randn(16, 7, generator=gen).cuda()
        loss = task_loss(task, model(x, task), x)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sums[task][0] += loss.item()
        sums[task][1] += 1

    table = torch.tensor([sums[t] for t in TASKS], device="cuda")
    dist.all_reduce(table)
    if rank == 0:
        for name, (total, n) in zip(TASKS, table.tolist()):
            print(f"{name}: mean loss {total / max(n, 1):.4f} in {int(n)} batches")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
