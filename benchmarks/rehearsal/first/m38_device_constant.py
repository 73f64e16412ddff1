import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"


def make_batch(gen, n=16):
    x = torch.rand(n, 2, generator=gen) * 2 - 1
    y = (x.norm(dim=1) < 0.7).float()
    return x.to(DEVICE), y.to(DEVICE)


def reduce_mean(t):
    t = t.detach().clone()
    dist.all_reduce(t)
    return t / dist.get_world_size()


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1)).to(DEVICE)
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(rank)

    for step in range(5):
        x, y = make_batch(gen)
        loss = F.binary_cross_entropy_with_logits(model(x).squeeze(1), y)
        opt.zero_grad()
        loss.backward()
        for p in model.parameters():
            p.grad = reduce_mean(p.grad)
        opt.step()
        mean = reduce_mean(loss)
        if rank == 0:
            print(f"step {step} loss {mean.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
