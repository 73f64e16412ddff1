"""Denoising autoencoder on two machines with two GPUs each."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def setup():
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    return rank, torch.device("cuda", rank)


def main():
    rank, device = setup()
    data = TensorDataset(torch.randn(64, 20, generator=torch.Generator().manual_seed(0)))
    sampler = DistributedSampler(data, shuffle=True, seed=1)
    loader = DataLoader(data, batch_size=4, sampler=sampler)

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 8), nn.Tanh(), nn.Linear(8, 20)).to(device)
    model = DDP(net, device_ids=[device.index])
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=2)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        total = torch.zeros(2, device=device)
        for (x,) in loader:
            x = x.to(device)
            noisy = x + 0.2 * torch.randn_like(x)
            loss = (model(noisy) - x).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += torch.stack([loss.detach() * len(x), torch.tensor(float(len(x)), device=device)])
        sched.step()
        dist.all_reduce(total)
        if rank == 0:
            print(epoch, (total[0] / total[1]).item())
    dist.destroy_process_group()


main()
