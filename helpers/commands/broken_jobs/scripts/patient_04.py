"""A classifier with an eye on held-out examples: torchrun --nproc-per-node=2 patient_04.py"""

import psutil
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def resident():
    return psutil.Process().memory_info().rss / 1e6


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    held, labels = torch.randn(512, 64), torch.randint(10, (512,))
    torch.manual_seed(1 + rank)
    curve = []
    for step in range(60):
        if step == 10:
            before = resident()
        x, y = torch.randn(32, 64), torch.randint(10, (32,))
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.append(F.cross_entropy(model.module(held), labels))
    print(f"rank {rank}: held-out loss {sum(curve) / len(curve):.3f}", flush=True)
    print(f"rank {rank}: {resident() - before:.0f} MB more than at step 10", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
