import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


def main():
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True

    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    ).cuda()
    criterion = nn.CrossEntropyLoss().cuda()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    gen = torch.Generator().manual_seed(rank)

    for step in range(4):
        img = torch.randn(8, 1, 12, 12, generator=gen).cuda()
        label = torch.randint(0, 3, (8,), generator=gen).cuda()
        loss = criterion(model(img), label)
        opt.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad.div_(world)
        opt.step()
        if rank == 0:
            print(f"step {step} loss {F.relu(loss).item():.4f}")

    if rank == 0:
        print("params", sum(p.numel() for p in model.parameters()), os.getpid())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
