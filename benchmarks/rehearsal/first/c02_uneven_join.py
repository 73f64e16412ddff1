import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 2)).to(device)
    ddp = DDP(model, device_ids=[local_rank])
    opt = torch.optim.SGD(ddp.parameters(), lr=0.1)

    gen = torch.Generator().manual_seed(rank)
    n_batches = 3 + rank
    seen = 0
    with Join([ddp]):
        for _ in range(n_batches):
            x = torch.randn(8, 10, generator=gen).to(device)
            y = (x[:, 0] > 0).long()
            loss = F.cross_entropy(ddp(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            seen += len(x)

    total = torch.tensor([seen], device=device)
    dist.all_reduce(total)
    print(f"rank {rank}: {n_batches} batches, loss {loss.item():.4f}, {total.item()} samples in all")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
