import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

LEARNERS = [0, 1]


def main():
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    learner = rank in LEARNERS
    if learner:
        group = dist.new_group(LEARNERS)

    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(5, 20), nn.Tanh(), nn.Linear(20, 2)).to(device)
    opt = torch.optim.Adam(policy.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(rank)

    for it in range(4):
        obs = torch.randn(32, 5, generator=gen).to(device)
        if learner:
            loss = F.cross_entropy(policy(obs), (obs[:, 0] > obs[:, 1]).long())
            opt.zero_grad()
            loss.backward()
            for p in policy.parameters():
                dist.all_reduce(p.grad, group=group)
                p.grad /= len(LEARNERS)
            opt.step()
        else:
            with torch.no_grad():
                reward = policy(obs).softmax(-1)[:, 0].mean()
        for p in policy.parameters():
            dist.broadcast(p.data, src=0)
        print(f"rank {rank} it {it}", "loss" if learner else "reward",
              (loss if learner else reward).item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
