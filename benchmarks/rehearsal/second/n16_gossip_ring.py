"""Gossip SGD: after each local step a rank averages its weights with those of its left neighbour."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters


def gossip(model):
    rank, world = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world, (rank - 1) % world
    mine = parameters_to_vector(model.parameters()).detach()
    other = torch.empty_like(mine)
    send = dist.isend(mine, dst=right)
    recv = dist.irecv(other, src=left)
    send.wait()
    recv.wait()
    vector_to_parameters(0.5 * (mine + other), model.parameters())


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 48), nn.Tanh(), nn.Linear(48, 3)).cuda()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(5 + rank)
    for step in range(5):
        x = torch.randn(24, 12, device="cuda")
        y = x[:, :3].argmax(1)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        gossip(model)
        seen = loss.detach().clone()
        dist.all_reduce(seen)
        if rank == 0:
            print(step, seen.item() / world)
    dist.destroy_process_group()


main()
