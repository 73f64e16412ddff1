"""Rank 1 plays, rank 0 learns: trajectories go one way, weights come back."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn

REWARDS, VALUES = 11, 12
N = 64

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
rank = dist.get_rank()
dev = torch.device("cuda", local_rank)
torch.manual_seed(0)
critic = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)).to(dev)


def play(it):
    g = torch.Generator(device=dev).manual_seed(it)
    obs = torch.randn(N, 4, device=dev, generator=g)
    with torch.no_grad():
        values = critic(obs).squeeze(-1).contiguous()
    rewards = obs.sum(1)
    dist.send(obs, dst=0)
    sent = [dist.isend(rewards, dst=0, tag=REWARDS)]
    sent.append(dist.isend(values, dst=0, tag=VALUES))
    for work in sent:
        work.wait()


def learn(opt):
    obs = torch.empty(N, 4, device=dev)
    values = torch.empty(N, device=dev)
    rewards = torch.empty(N, device=dev)
    dist.recv(obs, src=1)
    dist.recv(values, src=1, tag=VALUES)
    dist.recv(rewards, src=1, tag=REWARDS)
    advantage = rewards - values
    loss = (critic(obs).squeeze(-1) - rewards).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item(), advantage.mean().item()


opt = torch.optim.SGD(critic.parameters(), lr=1e-2)
for it in range(4):
    if rank == 1:
        play(it)
    else:
        print(it, learn(opt))
    for p in critic.parameters():
        dist.broadcast(p.data, src=0)
dist.destroy_process_group()
