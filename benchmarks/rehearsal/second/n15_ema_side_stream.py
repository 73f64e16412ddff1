"""Regress a frozen random target (RND-like); a running average of the weights is kept for evaluation."""
import copy
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


def view(x):
    return x + 0.1 * torch.randn_like(x)


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    dev = torch.device("cuda", local_rank)
    torch.manual_seed(0)
    online = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16)).to(dev)
    target = copy.deepcopy(online).requires_grad_(False)
    average = copy.deepcopy(online).requires_grad_(False)
    model = DDP(online, device_ids=[local_rank])
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    torch.manual_seed(9 + rank)
    for step in range(6):
        x = torch.randn(32, 16, device=dev)
        a = F.normalize(model(view(x)), dim=-1)
        with torch.no_grad():
            b = F.normalize(target(view(x)), dim=-1)
        loss = 2 - 2 * (a * b).sum(-1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.cuda.stream(side), torch.no_grad():
            for e, p in zip(average.parameters(), online.parameters()):
                e.lerp_(p, 0.05)
    torch.cuda.synchronize()
    with torch.no_grad():
        x = torch.randn(64, 16, device=dev)
        drift = (average(x) - online(x)).abs().mean()
    if rank == 0:
        print("loss", loss.item(), "drift", drift.item())
    dist.destroy_process_group()


main()
