import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

B, DIM = 8, 16


def push(tensors, dst):
    ops = [dist.P2POp(dist.isend, t, dst) for t in tensors]
    for req in dist.batch_isend_irecv(ops):
        req.wait()


def pull(shapes, src, device):
    out = [torch.empty(s, device=device) for s in shapes]
    for t in out:
        dist.recv(t, src=src)
    return out


def main():
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    start = torch.zeros(1, device=device)
    dist.all_reduce(start)  # everybody is here

    torch.manual_seed(rank)
    gen = torch.Generator().manual_seed(6)
    back = nn.Sequential(nn.Linear(10, DIM), nn.ReLU()).to(device)
    head = nn.Linear(DIM, 2).to(device)
    opt = torch.optim.SGD(head.parameters(), lr=0.1)
    for step in range(4):
        x = torch.randn(B, 10, generator=gen)
        if rank == 0:
            with torch.no_grad():
                h = back(x.to(device))
            push([h, h.mean(0)], dst=1)
            continue
        h, mean = pull([(B, DIM), (DIM,)], 0, device)
        loss = F.cross_entropy(head(h - mean), (x[:, 0] > 0).long().to(device))
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
