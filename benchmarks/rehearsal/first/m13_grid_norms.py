import os

import torch
import torch.distributed as dist
import torch.nn as nn


def main():
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    r, c = divmod(rank, 2)
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    cols = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    row, col = rows[r], cols[c]

    torch.manual_seed(rank)
    block = nn.Linear(6, 6).to(device)
    opt = torch.optim.SGD(block.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(9)
    for step in range(3):
        x = torch.randn(12, 6, generator=gen).to(device)
        loss = block(x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        row_sq = block.weight.grad.pow(2).sum()
        col_sq = block.weight.pow(2).sum().detach()
        if r == c:
            dist.all_reduce(row_sq, group=row)
            gnorm = row_sq.item() ** 0.5
            dist.all_reduce(col_sq, group=col)
            wnorm = col_sq.item() ** 0.5
        else:
            dist.all_reduce(col_sq, group=col)
            wnorm = col_sq.item() ** 0.5
            dist.all_reduce(row_sq, group=row)
            gnorm = row_sq.item() ** 0.5
        for p in block.parameters():
            p.grad.mul_(wnorm / (gnorm + 1e-6))
        opt.step()
        print(f"rank {rank} step {step} |g| {gnorm:.3f} |w| {wnorm:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
