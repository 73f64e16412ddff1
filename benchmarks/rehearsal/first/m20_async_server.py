import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

ROUNDS = 3


def pack(model):
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def unpack(model, flat, lr):
    i = 0
    with torch.no_grad():
        for p in model.parameters():
            p -= lr * flat[i:i + p.numel()].view_as(p)
            i += p.numel()


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = nn.Linear(10, 2).to(device)
    size = sum(p.numel() for p in model.parameters())
    gen = torch.Generator().manual_seed(rank)
    for rnd in range(ROUNDS):
        for p in model.parameters():
            dist.broadcast(p.data, src=0)
        if rank == 0:
            grad = torch.empty(size, device=device)
            for _ in range(world - 1):
                sender = dist.recv(grad)
                unpack(model, grad, lr=0.1)
                print(f"round {rnd}: took gradient of rank {sender}")
        else:
            x = torch.randn(16, 10, generator=gen).to(device)
            y = (x[:, 0] > 0).long()
            model.zero_grad()
            F.cross_entropy(model(x), y).backward()
            dist.send(pack(model), dst=0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
