# rehearse with: --nproc 4 --nnodes 2
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


def setup():
    rank = int(os.environ["RANK"])
    world = int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=world)
    return rank, world, torch.device("cuda", rank)


def main():
    rank, world, device = setup()
    torch.manual_seed(0)
    gru = nn.GRU(6, 12, batch_first=True).to(device)
    head = nn.Linear(12, 1).to(device)
    model = nn.ModuleDict({"gru": gru, "head": head})
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(rank)

    for step in range(3):
        x = torch.randn(8, 5, 6, generator=gen).to(device)
        y = x.sum((1, 2))
        h, _ = model["gru"](x)
        pred = model["head"](h[:, -1]).squeeze(1)
        loss = F.mse_loss(pred, y)
        opt.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        opt.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f} on {world} ranks")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
