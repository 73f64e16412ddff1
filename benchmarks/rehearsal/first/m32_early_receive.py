import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

B, DIM = 8, 12


def sync_grads(model):
    for p in model.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)


def main():
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(DIM, 24), nn.ReLU(), nn.Linear(24, DIM)).to(device)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(rank)
    teacher = torch.zeros(B, DIM, device=device)

    for step in range(4):
        if rank == 1:  # start early, so that it is there when we need it
            incoming = torch.empty(B, DIM, device=device)
            req = dist.irecv(incoming, src=0)
        x = torch.randn(B, DIM, generator=gen).to(device)
        out = model(x)
        loss = F.mse_loss(out, x) + 0.1 * F.mse_loss(out, teacher)
        opt.zero_grad()
        loss.backward()
        sync_grads(model)
        opt.step()
        if rank == 0:
            req = dist.isend(out.detach().contiguous(), dst=1)
        req.wait()
        if rank == 1:
            teacher = incoming
        print(f"rank {rank} step {step} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
