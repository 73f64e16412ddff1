import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 3)
        self.register_buffer("shift", torch.linspace(-1, 1, 8))

    def forward(self, x):
        return self.fc(x + self.shift)


def main():
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = DDP(Scaled().to(device), device_ids=[local_rank])
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(rank)
    pool = torch.from_numpy(np.random.default_rng(rank).normal(size=(64, 8)).astype("float32")).to(device)
    target = pool[:, :3].argmax(1)
    temperature = torch.tensor(0.5)
    history = []

    for step in range(5):
        idx = torch.randperm(64, generator=gen)[:16]
        x, y = pool[idx], target[idx]
        logits = model(x) / temperature
        loss = F.cross_entropy(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        hit = (logits.argmax(1) == y).cpu().numpy()
        history.append(float(np.mean(hit)))
    best = torch.tensor(max(history), device=device)
    dist.all_reduce(best, op=dist.ReduceOp.MAX)
    if rank == 0:
        print("loss", loss.item(), "best", best.item(), "last", history[-1])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
