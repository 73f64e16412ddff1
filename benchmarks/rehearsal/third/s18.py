import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

FEATURES = 16


def raw_data():
    rng = np.random.default_rng(5)
    x = rng.normal(3.0, 4.0, size=(256, FEATURES))
    y = (x.mean(axis=1) > 3.0).astype(np.int64)
    return x, y


def feature_stats(x, rank, device):
    """Mean and std are computed once and shared."""
    if rank == 0:
        stats = np.stack([x.mean(axis=0), x.std(axis=0)])
        stats = torch.from_numpy(stats).to(device)
    else:
        stats = torch.empty(2, FEATURES, device=device)
    dist.broadcast(stats, src=0)
    return stats.float()


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()

    x, y = raw_data()
    mean, std = feature_stats(x, rank, device)
    x = torch.from_numpy(x[rank::world]).float().to(device)
    x = (x - mean) / std
    y = torch.from_numpy(y[rank::world]).to(device)

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(FEATURES, 32), nn.GELU(), nn.Linear(32, 2)).to(device)
    model = DDP(model, device_ids=[local_rank])
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for epoch in range(2):
        for start in range(0, len(x), 32):
            loss = nn.functional.cross_entropy(model(x[start:start + 32]), y[start:start + 32])
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            print(f"epoch {epoch}: {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
