import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


def mean_over_ranks(value):
    t = value.detach().clone()
    dist.all_reduce(t)
    return t.item() / dist.get_world_size()


def main():
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(14, 28), nn.GELU(), nn.Linear(28, 3)).to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(70 + rank)

    for step in range(1, 7):
        x = torch.randn(20, 14, generator=gen).to(device)
        y = torch.randint(0, 3, (20,), generator=gen).to(device)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        opt.step()
        if rank == 0 and step % 3 == 0:
            print(f"step {step} mean loss {mean_over_ranks(loss):.4f}")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
