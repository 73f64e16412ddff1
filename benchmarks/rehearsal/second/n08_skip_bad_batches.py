"""Sensor regression; a few readings overflow, those batches are thrown away."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset


def readings():
    g = torch.Generator().manual_seed(3)
    x = torch.randn(64, 8, generator=g)
    y = x.sin().sum(1, keepdim=True)
    x[50, 2] = float("inf")
    return x, y


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    x, y = readings()
    per = len(x) // world
    mine = slice(rank * per, (rank + 1) * per)
    loader = DataLoader(TensorDataset(x[mine], y[mine]), batch_size=4)

    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1)).cuda(), device_ids=[local_rank])
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    skipped = 0
    for xb, yb in loader:
        xb, yb = xb.cuda(), yb.cuda()
        loss = (model(xb) - yb).pow(2).mean()
        if not torch.isfinite(loss):
            skipped += 1
            continue
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
    print(f"[{rank}] last loss {loss.item():.4f}, skipped {skipped}")
    dist.destroy_process_group()


main()
