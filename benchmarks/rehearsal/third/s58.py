import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass
class Config:
    epochs: int = 20
    batch: int = 32
    lr: float = 0.1
    goal: float = 0.3
    noise: tuple = (0.01, 1.5)


def site_data(n, seed, noise):
    w = torch.linspace(-1, 1, 8).unsqueeze(1)
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 8, generator=g)
    return x, x @ w + noise * torch.randn(n, 1, generator=g)


def validate(model, x, y):
    model.eval()
    with torch.no_grad():
        value = nn.functional.mse_loss(model.module(x), y).item()
    model.train()
    return value


def main(cfg):
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank = dist.get_rank()

    # one site per worker
    x, y = (t.cuda() for t in site_data(128, 20 + rank, cfg.noise[rank]))
    vx, vy = (t.cuda() for t in site_data(64, 80 + rank, cfg.noise[rank]))
    model = DDP(nn.Linear(8, 1).cuda(), device_ids=[local_rank])
    opt = torch.optim.SGD(model.parameters(), lr=cfg.lr)

    for epoch in range(cfg.epochs):
        for i in range(0, len(x), cfg.batch):
            opt.zero_grad()
            loss = nn.functional.mse_loss(model(x[i:i + cfg.batch]), y[i:i + cfg.batch])
            loss.backward()
            opt.step()
        val_loss = validate(model, vx, vy)
        if val_loss < cfg.goal:
            print(f"rank {rank}: goal reached in epoch {epoch}")
            break

    dist.barrier()
    if rank == 0:
        print("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Config())
