import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = DDP(nn.Linear(9, 3).to(device), device_ids=[local_rank])
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    # the bigger machine takes the bigger batch
    batch = 24 if rank == 0 else 16
    gen = torch.Generator().manual_seed(rank)
    for step in range(4):
        x = torch.randn(batch, 9, generator=gen).to(device)
        y = torch.randint(0, 3, (batch,), generator=gen).to(device)
        each = F.cross_entropy(model(x), y, reduction="none")
        level = each.detach().clone()
        dist.all_reduce(level)
        level /= world
        weight = (each.detach() > level.mean()).float() + 0.5
        loss = (each * weight).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            print(f"{step} loss {loss.item():.4f} level {level.mean().item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
