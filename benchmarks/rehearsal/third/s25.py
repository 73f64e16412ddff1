"""Ring averaging of the weights, neighbour by neighbour."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn


def ring_average(params, rank, world):
    right = (rank + 1) % world
    left = (rank + 1) % world
    flat = torch.cat([p.detach().flatten() for p in params])
    total, chunk = flat.clone(), flat
    for _ in range(world - 1):
        incoming = torch.empty_like(chunk)
        ops = [
            dist.P2POp(dist.isend, chunk, right),
            dist.P2POp(dist.irecv, incoming, left),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        total += incoming
        chunk = incoming
    total /= world
    offset = 0
    with torch.no_grad():
        for p in params:
            p.copy_(total[offset:offset + p.numel()].view_as(p))
            offset += p.numel()


def main():
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))

    torch.manual_seed(21)
    model = nn.Sequential(nn.Linear(14, 28), nn.ReLU(), nn.Linear(28, 1)).cuda()
    params = list(model.parameters())
    opt = torch.optim.SGD(params, lr=0.03)
    gen = torch.Generator().manual_seed(70 + rank)

    for outer in range(3):
        for inner in range(4):
            x = torch.randn(16, 14, generator=gen).cuda()
            y = x[:, :1] - x[:, 1:2]
            loss = nn.functional.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        ring_average(params, rank, world)
        torch.cuda.synchronize()
        if rank == 0:
            print(f"round {outer} loss {loss.item():.4f}")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
