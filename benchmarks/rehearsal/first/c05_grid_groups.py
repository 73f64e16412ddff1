import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

R, C = 2, 2


def make_grid(rank):
    row = col = None
    for r in range(R):
        members = [r * C + c for c in range(C)]
        g = dist.new_group(members)
        if rank in members:
            row = g
    for c in range(C):
        members = [r * C + c for r in range(R)]
        g = dist.new_group(members)
        if rank in members:
            col = g
    return row, col


def main():
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    device = torch.device("cuda", local_rank)
    row, col = make_grid(rank)
    torch.manual_seed(0)
    model = nn.Linear(10, 10).to(device)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(rank)
    for step in range(4):
        x = torch.randn(8, 10, generator=gen).to(device)
        loss = F.mse_loss(model(x), x * 2)
        opt.zero_grad()
        loss.backward()
        for p in model.parameters():
            work = dist.all_reduce(p.grad, group=row, async_op=True)
            work.wait()
            dist.all_reduce(p.grad, group=col)
            p.grad /= R * C
        opt.step()
        if rank % C == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean, group=col)  # first column only
            if rank == 0:
                print(step, mean.item() / R)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
