import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

B, DIM, STEPS = 16, 12, 5


def producer(device):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, DIM), nn.Tanh()).to(device)
    gen = torch.Generator().manual_seed(1)
    out = torch.empty(B, DIM, device=device)
    req = None
    with torch.no_grad():
        for _ in range(STEPS):
            x = torch.randn(B, 6, generator=gen).to(device)
            out.copy_(net(x))
            if req is not None:
                req.wait()
            req = dist.isend(out, dst=1)
        req.wait()


def consumer(device):
    torch.manual_seed(1)
    head = nn.Linear(DIM, DIM).to(device)
    opt = torch.optim.SGD(head.parameters(), lr=0.1)
    buf = torch.empty(B, DIM, device=device)
    for step in range(STEPS):
        dist.recv(buf, src=0)
        h = buf.clone()
        loss = F.mse_loss(head(h), h.flip(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step} loss {loss.item():.4f}")


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    device = torch.device("cuda", local_rank)
    if dist.get_rank() == 0:
        producer(device)
    else:
        consumer(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
