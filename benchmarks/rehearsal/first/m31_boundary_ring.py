import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


def from_left(x, rank, world):
    """Last time step of the left neighbour's segment (sequence split over ranks)."""
    edge = x[:, -1].contiguous()
    halo = torch.empty_like(edge)
    out = dist.isend(edge, (rank + 1) % world)
    inc = dist.irecv(halo, (rank - 1) % world)
    out.wait()
    inc.wait()
    return torch.cat([halo.unsqueeze(1), x], dim=1)


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    device = torch.device("cuda", local_rank)
    torch.manual_seed(0)
    conv = nn.Conv1d(3, 3, kernel_size=2).to(device)
    opt = torch.optim.SGD(conv.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(rank)

    for step in range(3):
        seg = torch.randn(4, 10, 3, generator=gen).to(device)
        full = from_left(seg, rank, world)
        pred = conv(full.transpose(1, 2)).transpose(1, 2)
        loss = F.mse_loss(pred, seg)
        opt.zero_grad()
        loss.backward()
        for p in conv.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        opt.step()
        if rank == 0:
            print(step, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
