"""Pipeline over three workers with micro batches, written by hand."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn

DIM, ROWS, MICRO = 20, 8, 4


def build_stage(rank, world):
    torch.manual_seed(10 * rank + 1)
    if rank == world - 1:
        return nn.Linear(DIM, 2)
    return nn.Sequential(nn.Linear(6 if rank == 0 else DIM, DIM), nn.ReLU())


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = build_stage(rank, world).to(device)
    opt = torch.optim.Adam(stage.parameters(), lr=5e-3)
    # first and last stage draw the same data: one uses x, the other y
    data = torch.Generator().manual_seed(123)

    for step in range(5):
        opt.zero_grad()
        xs = torch.randn(MICRO, ROWS, 6, generator=data)
        ys = (xs.sum(dim=2) > 0).long()
        saved, total = [], 0.0

        for m in range(MICRO):
            if rank == 0:
                inp = xs[m].to(device)
            else:
                inp = torch.empty(ROWS, DIM, device=device)
                dist.recv(inp, src=rank - 1)
                inp.requires_grad_()
            out = stage(inp)
            if rank < world - 1:
                dist.send(out.detach(), dst=rank + 1)
            saved.append((inp, out))

        for m in range(MICRO):
            inp, out = saved[m]
            if rank == world - 1:
                loss = nn.functional.cross_entropy(out, ys[m].to(device)) / MICRO
                loss.backward()
                total += loss.item()
            else:
                grad = torch.empty_like(out)
                dist.recv(grad, src=rank + 1)
                out.backward(grad)
            if rank > 0:
                dist.send(inp.grad, dst=rank - 1)
        opt.step()
        if rank == world - 1:
            print(f"step {step} loss {total:.4f}")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
