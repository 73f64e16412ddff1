import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")

    gen = torch.Generator().manual_seed(42)
    xs = torch.randn(26 * 8, 10, generator=gen)
    ys = (xs[:, 0] * xs[:, 1] > 0).long()
    batches = list(zip(xs.split(8), ys.split(8)))
    mine = batches[rank::world]

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2)).cuda()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    for i, (x, y) in enumerate(mine):
        x, y = x.cuda(), y.cuda()
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        opt.step()
        if rank == 0:
            print(f"batch {i} loss {loss.item():.4f}")

    print(f"rank {rank} finished {len(mine)} batches")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
