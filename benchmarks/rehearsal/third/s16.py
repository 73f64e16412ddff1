import copy
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

BEST = os.path.join(tempfile.gettempdir(), "best_ema.pt")


def rows(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 8, generator=g)
    return x, x[:, :2].sum(dim=1, keepdim=True)


@torch.no_grad()
def validate(net, x, y, rank, world, device):
    # strided split of 77 rows: the last one has no partner, so sums are reduced
    stats = torch.zeros(2, dtype=torch.float64, device=device)
    for i in range(rank, len(x), world):
        err = (net(x[i:i + 1].to(device)) - y[i:i + 1].to(device)).pow(2)
        stats[0] += err.sum().double()
        stats[1] += err.numel()
    dist.all_reduce(stats)
    return (stats[0] / stats[1]).item()


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).to(device), device_ids=[local_rank])
    ema = copy.deepcopy(model.module).requires_grad_(False)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=1)
    x, y = rows(128, 10 + rank)
    vx, vy = rows(77, 99)
    best, bad = float("inf"), 0

    for epoch in range(10):
        for i in range(0, 128, 16):
            opt.zero_grad()
            nn.functional.mse_loss(model(x[i:i + 16].to(device)), y[i:i + 16].to(device)).backward()
            opt.step()
            with torch.no_grad():
                for e, p in zip(ema.parameters(), model.module.parameters()):
                    e.lerp_(p, 0.2)
        val = validate(ema, vx, vy, rank, world, device)
        plateau.step(val)
        stop = torch.zeros(1, dtype=torch.int32, device=device)
        if rank == 0:
            if val < best - 1e-3:
                best, bad = val, 0
                torch.save(ema.state_dict(), BEST)
            else:
                bad += 1
            stop.fill_(int(bad >= 2 or val < 0.02))
            print(f"epoch {epoch} val {val:.4f}")
        dist.broadcast(stop, src=0)
        if stop.item():
            break

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
