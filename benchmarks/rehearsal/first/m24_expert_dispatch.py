import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

TOKENS, DIM = 16, 8


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(rank)
    expert = nn.Sequential(nn.Linear(DIM, 32), nn.ReLU(), nn.Linear(32, DIM)).to(device)
    opt = torch.optim.Adam(expert.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(30 + rank)
    share = TOKENS // world

    for step in range(3):
        x = torch.randn(TOKENS, DIM, generator=gen)
        first = 10 + 2 * rank  # threshold router: the popular expert gets more
        score = x[:, 0]
        goes = torch.ones(TOKENS, dtype=torch.long)
        goes[score.argsort(descending=True)[:first]] = 0
        order = goes.argsort(stable=True)
        send = x[order].to(device)
        counts = torch.bincount(goes, minlength=world).tolist()
        got = torch.empty(TOKENS, DIM, device=device)
        dist.all_to_all_single(got, send,
                               output_split_sizes=[share] * world,
                               input_split_sizes=counts)
        loss = F.mse_loss(expert(got), got.flip(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"rank {rank} step {step} sent {counts} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
