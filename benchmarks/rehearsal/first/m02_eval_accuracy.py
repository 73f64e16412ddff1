import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


def evaluate(model, xs, ys, device):
    model.eval()
    hits = []
    with torch.no_grad():
        for x, y in zip(xs, ys):
            pred = model(x.to(device)).argmax(dim=1)
            hits.append((pred.numpy() == y.numpy()).mean())
    model.train()
    return float(np.mean(hits))


def main():
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(1)
    model = DDP(nn.Linear(20, 5).to(device), device_ids=[local_rank])
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(10 + rank)
    xs = torch.randn(4, 32, 20, generator=g)
    ys = torch.randint(0, 5, (4, 32), generator=g)
    for epoch in range(2):
        for x, y in zip(xs, ys):
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
        acc = evaluate(model.module, xs, ys, device)
        if rank == 0:
            print("epoch", epoch, "loss", loss.item(), "acc", acc)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
