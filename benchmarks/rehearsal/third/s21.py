import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WORLD = 2


def find_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def worker(rank, world, port, queue):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=world)

    g = torch.Generator().manual_seed(3)
    x = torch.randn(128, 6, generator=g)
    data = TensorDataset(x, x.mean(dim=1, keepdim=True))
    sampler = DistributedSampler(data, num_replicas=world, rank=rank)
    loader = DataLoader(data, batch_size=16, sampler=sampler)

    model = DDP(nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1)).cuda(rank), device_ids=[rank])
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for bx, by in loader:
            opt.zero_grad()
            loss = nn.functional.mse_loss(model(bx.cuda(rank)), by.cuda(rank))
            loss.backward()
            opt.step()

    mean = loss.detach().clone()
    dist.reduce(mean, dst=0)
    if rank == 0:
        queue.put(mean.item() / world)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    ctx = mp.get_context("spawn")
    results = ctx.SimpleQueue()
    mp.spawn(worker, args=(WORLD, find_port(), results), nprocs=WORLD)
    print("final loss", results.get())
