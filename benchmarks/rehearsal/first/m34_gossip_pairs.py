import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


def gossip(model, partner):
    mine = torch.cat([p.detach().flatten() for p in model.parameters()])
    theirs = torch.empty_like(mine)
    ops = [dist.P2POp(dist.isend, mine, partner),
           dist.P2POp(dist.irecv, theirs, partner)]
    for req in dist.batch_isend_irecv(ops):
        req.wait()
    mean, i = (mine + theirs) / 2, 0
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(mean[i:i + p.numel()].view_as(p))
            i += p.numel()


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = nn.Linear(8, 3).to(device)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(rank)
    partner = rank ^ 1

    for step in range(4):
        x = torch.randn(16, 8, generator=gen).to(device)
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if partner < world:
            gossip(model, partner)
        print(f"rank {rank} step {step} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
