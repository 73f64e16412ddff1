import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


def shift(t, rank, world, tag):
    right, left = (rank + 1) % world, (rank - 1) % world
    got = torch.empty_like(t)
    if rank % 2 == 0:
        dist.send(t, dst=right, tag=tag)
        dist.recv(got, src=left, tag=tag)
    else:
        dist.recv(got, src=left, tag=tag)
        dist.send(t, dst=right, tag=tag)
    return got


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 18), nn.ReLU(), nn.Linear(18, 6)).to(device)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(rank)

    for step in range(4):
        x = torch.randn(12, 6, generator=gen).to(device)
        loss = F.mse_loss(model(x), x.abs())
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            for i, p in enumerate(model.parameters()):
                p.add_(shift(p.detach().clone(), rank, world, tag=100 * step + i)).div_(2)
        print(f"rank {rank} step {step} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
