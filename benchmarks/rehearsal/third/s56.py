"""Hand-written three stage pipeline without micro batches."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn

HIDDEN = 24
BATCH = 16


def make_stage(rank, world):
    if rank == 0:
        return nn.Sequential(nn.Linear(8, HIDDEN), nn.ReLU())
    if rank == world - 1:
        return nn.Sequential(nn.Linear(HIDDEN, 1))
    return nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU())


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    first, last = rank == 0, rank == world - 1

    torch.manual_seed(rank)
    stage = make_stage(rank, world).to(device)
    opt = torch.optim.SGD(stage.parameters(), lr=0.05)
    data = torch.Generator().manual_seed(3)

    for step in range(5):
        x = torch.randn(BATCH, 8, generator=data).to(device)
        y = x.sum(dim=1, keepdim=True)
        opt.zero_grad()

        if first:
            inp = x
        else:
            inp = torch.empty(BATCH, HIDDEN, device=device)
            dist.recv(inp, src=rank - 1)
            inp.requires_grad_(True)
        out = stage(inp)

        if last:
            loss = nn.functional.mse_loss(out, y)
            loss.backward()
            print(f"step {step} loss {loss.item():.4f}")
        else:
            dist.send(out.detach(), dst=rank + 1)
            grad = torch.empty_like(out)
            dist.recv(grad, src=world - 1)
            out.backward(grad)

        if not first:
            dist.send(inp.grad, dst=rank - 1)
        opt.step()

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
