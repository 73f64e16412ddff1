"""Two GANs, one per GPU, that swap discriminators every few steps (as in GMAN/MD-GAN)."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
rank = dist.get_rank()
peer = 1 - rank
dev = torch.device("cuda", local_rank)
torch.manual_seed(rank)
G = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2)).to(dev)
D = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)).to(dev)
optG = torch.optim.Adam(G.parameters(), lr=2e-4, betas=(0.5, 0.9))
optD = torch.optim.Adam(D.parameters(), lr=2e-4, betas=(0.5, 0.9))


def swap(module):
    mine = parameters_to_vector(module.parameters()).detach()
    theirs = torch.empty_like(mine)
    dist.send(mine, dst=peer)
    dist.recv(theirs, src=peer)
    vector_to_parameters(theirs, module.parameters())


for step in range(6):
    real = torch.randn(32, 2, device=dev) * 0.5 + rank
    fake = G(torch.randn(32, 4, device=dev))
    d_loss = F.softplus(-D(real)).mean() + F.softplus(D(fake.detach())).mean()
    optD.zero_grad()
    d_loss.backward()
    optD.step()
    g_loss = F.softplus(-D(fake)).mean()
    optG.zero_grad()
    g_loss.backward()
    optG.step()
    if step % 2 == 1:
        swap(D)
    print(f"[{rank}] {step} d {d_loss.item():.3f} g {g_loss.item():.3f}")
dist.destroy_process_group()
