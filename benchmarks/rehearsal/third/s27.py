import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def gather_rows(rows):
    """all_gather of tensors with a different first dimension."""
    world = dist.get_world_size()
    size = torch.tensor([rows.shape[0]], device=rows.device)
    sizes = [torch.zeros_like(size) for _ in range(world)]
    dist.all_gather(sizes, size)
    sizes = [int(s.item()) for s in sizes]
    padded = rows.new_zeros(max(sizes), *rows.shape[1:])
    padded[: rows.shape[0]] = rows
    out = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(out, padded)
    return torch.cat([o[:n] for o, n in zip(out, sizes)])


def main():
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)

    model = DDP(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)).to(device), device_ids=[local_rank])
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(rank)
    for _ in range(10):
        x = torch.randn(20, 4, generator=gen).to(device)
        opt.zero_grad()
        nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long()).backward()
        opt.step()

    # 100 rows do not divide by three
    g = torch.Generator().manual_seed(55)
    x_test = torch.randn(100, 4, generator=g)
    y_test = (x_test[:, 0] > 0).long()
    mine = torch.arange(rank, len(x_test), world)
    model.eval()
    with torch.no_grad():
        pred = model.module(x_test[mine].to(device)).argmax(dim=1)
    table = torch.stack([mine.to(device), pred], dim=1)
    table = gather_rows(table)
    if rank == 0:
        table = table[table[:, 0].argsort()].cpu()
        acc = (table[:, 1] == y_test).float().mean().item()
        print(f"{len(table)} rows, accuracy {acc:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
