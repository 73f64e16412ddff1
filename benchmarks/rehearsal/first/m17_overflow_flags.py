import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 8)).to(device)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(rank)
    scale, skipped = 1024.0, 0

    for step in range(5):
        x = torch.randn(16, 8, generator=gen).to(device)
        loss = F.mse_loss(model(x), x) * scale
        opt.zero_grad()
        loss.backward()
        bad = torch.zeros(1, dtype=torch.int32, device=device)
        for i, p in enumerate(model.parameters()):
            dist.all_reduce(p.grad)
            p.grad /= scale * world
            bad |= (~torch.isfinite(p.grad).all()).int() << i
        dist.all_reduce(bad, op=dist.ReduceOp.BOR)
        if bad.item():
            scale, skipped = scale / 2, skipped + 1
            continue
        opt.step()
        if rank == 0:
            print(f"step {step} loss {loss.item() / scale:.4f} scale {scale}")
    if rank == 0:
        print("skipped", skipped)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
