import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

DIM = 8


def route(x, goes, world):
    order = goes.argsort(stable=True)
    counts = torch.bincount(goes, minlength=world)
    incoming = torch.empty_like(counts)
    dist.all_to_all_single(incoming, counts)
    n_out, n_in = counts.tolist(), incoming.tolist()
    got = x.new_empty(sum(n_in), x.shape[1])
    dist.all_to_all_single(got, x[order].contiguous(), n_in, n_out)
    return got, order, n_in, n_out


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(rank)
    expert = nn.Sequential(nn.Linear(DIM, 16), nn.ReLU(), nn.Linear(16, DIM)).to(device)
    opt = torch.optim.Adam(expert.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(rank)

    for step in range(3):
        x = torch.randn(10 + 3 * rank, DIM, generator=gen).to(device)
        goes = x[:, :world].argmax(1)
        got, order, n_in, n_out = route(x, goes, world)
        out = expert(got)
        loss = F.mse_loss(out, got.flip(1), reduction="sum") / 16
        opt.zero_grad()
        loss.backward()
        opt.step()
        back = torch.empty_like(x)
        dist.all_to_all_single(back, out.detach().contiguous(), n_out, n_in)
        y = torch.empty_like(x)
        y[order] = back
        print(f"rank {rank} step {step} got {len(got)} loss {loss.item():.4f} |y| {y.norm().item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
