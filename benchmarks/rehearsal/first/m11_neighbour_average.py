import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


def mix_with(peer, model):
    """Gossip: replace every parameter by the mean of ours and the neighbour's."""
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    other = torch.empty_like(flat)
    dist.send(flat, dst=peer)
    dist.recv(other, src=peer)
    mean = (flat + other) / 2
    i = 0
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(mean[i:i + p.numel()].view_as(p))
            i += p.numel()


def main():
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
    opt = torch.optim.SGD(model.parameters(), lr=0.02)
    gen = torch.Generator().manual_seed(rank)
    for step in range(6):
        x = torch.randn(32, 16, generator=gen).to(device)
        loss = F.mse_loss(model(x), x.sum(1, keepdim=True))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 2 == 1:
            mix_with(1 - rank, model)
        print(f"rank {rank} step {step} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
