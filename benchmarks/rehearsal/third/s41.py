"""Two ensemble members, each trained data-parallel by two workers."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn

MEMBERS = [[0, 1], [2, 3]]


def sync_grads(model, group, size):
    for p in model.parameters():
        dist.all_reduce(p.grad, group=group)
        p.grad.div_(size)


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank = dist.get_rank()

    groups = [dist.new_group(ranks) for ranks in MEMBERS]
    member = rank // 2
    group = groups[member]

    torch.manual_seed(500 + rank)
    model = nn.Sequential(nn.Linear(7, 21), nn.Tanh(), nn.Linear(21, 1)).cuda()
    # the first worker of each member gives the start weights
    for p in model.parameters():
        dist.broadcast(p.data, src=0, group=group)

    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    gen = torch.Generator().manual_seed(30 + rank)
    for step in range(10):
        x = torch.randn(16, 7, generator=gen).cuda()
        y = x.abs().sum(dim=1, keepdim=True)
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        sync_grads(model, group, len(MEMBERS[member]))
        opt.step()

    # ensemble prediction on common test data
    test = torch.randn(32, 7, generator=torch.Generator().manual_seed(1)).cuda()
    with torch.no_grad():
        pred = model(test)
    dist.all_reduce(pred)
    pred /= dist.get_world_size()
    if rank == 0:
        print("ensemble mse", nn.functional.mse_loss(pred, test.abs().sum(1, keepdim=True)).item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
