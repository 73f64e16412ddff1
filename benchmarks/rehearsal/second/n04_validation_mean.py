"""Tabular regression with a validation pass over large batches."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
dev = torch.device("cuda", local_rank)

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1)).to(dev)
model = DDP(net, device_ids=[local_rank])
opt = torch.optim.SGD(model.parameters(), lr=1e-3)
gen = torch.Generator(device=dev).manual_seed(100 + rank)


def batch(n):
    x = torch.randn(n, 64, device=dev, generator=gen)
    return x, x[:, :4].sum(1, keepdim=True)


def validate(batches=12):
    model.eval()
    total = torch.zeros((), device=dev)
    for _ in range(batches):
        x, y = batch(8192)
        pred = net(x)
        total += F.mse_loss(pred, y)
    mean = total.detach() / batches
    dist.all_reduce(mean)
    model.train()
    return mean.item() / world


for epoch in range(2):
    for step in range(3):
        x, y = batch(64)
        loss = F.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    v = validate()
    if rank == 0:
        print(f"epoch {epoch} train {loss.item():.3f} val {v:.3f}")
dist.destroy_process_group()
