import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

VAL_RANKS = [0, 1]


def synthetic(n, seed, device):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 5, generator=g)
    return x.to(device), x.prod(dim=1, keepdim=True).to(device)


def setup():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    return dist.get_rank(), torch.device("cuda", local_rank)


def main():
    rank, device = setup()

    # validation runs on two of the three workers
    val_group = None
    if rank in VAL_RANKS:
        val_group = dist.new_group(VAL_RANKS)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)
    ddp = DDP(model, device_ids=[device.index])
    opt = torch.optim.SGD(ddp.parameters(), lr=0.02)
    x, y = synthetic(96, 10 + rank, device)

    for epoch in range(3):
        for i in range(0, 96, 24):
            opt.zero_grad()
            nn.functional.mse_loss(ddp(x[i:i + 24]), y[i:i + 24]).backward()
            opt.step()
        if rank in VAL_RANKS:
            vx, vy = synthetic(40, 500 + rank, device)
            with torch.no_grad():
                val = nn.functional.mse_loss(model(vx), vy)
            dist.all_reduce(val, group=val_group)
            if rank == 0:
                print(f"epoch {epoch} val {val.item() / len(VAL_RANKS):.4f}")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
