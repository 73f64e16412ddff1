# Gossip training: the two workers train alone and average their weights now and then.
import os

import torch
import torch.distributed as dist
import torch.nn as nn


def flatten(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def unflatten(model, flat):
    offset = 0
    with torch.no_grad():
        for p in model.parameters():
            n = p.numel()
            p.copy_(flat[offset:offset + n].view_as(p))
            offset += n


def gossip(model, peer):
    mine = flatten(model)
    theirs = torch.empty_like(mine)
    dist.send(mine, dst=peer)
    dist.recv(theirs, src=peer)
    unflatten(model, (mine + theirs) / 2)


def main():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    peer = 1 - rank
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = f"cuda:{local_rank}"

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 1)
    ).to(device)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    g = torch.Generator().manual_seed(10 + rank)

    for step in range(8):
        x = torch.randn(16, 64, generator=g).to(device)
        y = x.mean(dim=1, keepdim=True)
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if (step + 1) % 4 == 0:
            gossip(model, peer)
            print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
