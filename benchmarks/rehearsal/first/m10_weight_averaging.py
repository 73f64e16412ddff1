# rehearse with: --nproc 2 --memory 64MB
import copy
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


def main():
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    device = torch.device("cuda", local_rank)
    torch.manual_seed(11)
    model = nn.Sequential(nn.Linear(1024, 1024), nn.Tanh(), nn.Linear(1024, 1024)).to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    gen = torch.Generator().manual_seed(rank)
    snapshots = []

    for step in range(8):
        x = torch.randn(16, 1024, generator=gen).to(device)
        loss = F.mse_loss(model(x), x.roll(1, dims=1))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        opt.step()
        snapshots.append(copy.deepcopy(model.state_dict()))
        if rank == 0:
            print(step, loss.item())

    averaged = {}
    for name in snapshots[0]:
        averaged[name] = sum(s[name].cpu() for s in snapshots) / len(snapshots)
    model.load_state_dict(averaged)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
