"""Two pipeline stages, 1F1B, the last stage tells the others the loss."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

BATCH, MICRO, D = 16, 4, 12


def build(rank):
    torch.manual_seed(rank)
    if rank == 0:
        return nn.Sequential(nn.Linear(D, 48), nn.GELU(), nn.Linear(48, 24))
    return nn.Sequential(nn.GELU(), nn.Linear(24, 24), nn.GELU(), nn.Linear(24, 1))


def mse(out, target):
    return (out - target).pow(2).mean()


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    dev = torch.device("cuda", local_rank)
    last = world - 1

    ready = torch.ones(1, device=dev)
    dist.all_reduce(ready)
    module = build(rank).to(dev)
    stage = PipelineStage(module, rank, world, dev)
    schedule = Schedule1F1B(stage, n_microbatches=MICRO, loss_fn=mse)
    opt = torch.optim.Adam(module.parameters(), lr=1e-2)
    gen = torch.Generator(device=dev).manual_seed(11)
    for step in range(4):
        x = torch.randn(BATCH, D, device=dev, generator=gen)
        y = x.sin().sum(1, keepdim=True)
        opt.zero_grad()
        if rank == 0:
            schedule.step(x)
            mean = torch.zeros((), device=dev)
        else:
            losses = []
            schedule.step(target=y, losses=losses)
            mean = torch.stack(losses).mean().detach()
        opt.step()
        dist.broadcast(mean, src=last)
        print(f"[{rank}] {step} {mean.item():.4f}")
    dist.destroy_process_group()


main()
