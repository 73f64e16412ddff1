import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def launch(world_size, lr, steps):
    port = free_port()

    def worker(rank):
        os.environ["MASTER_ADDR"] = "127.0.0.1"
        os.environ["MASTER_PORT"] = str(port)
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", rank=rank, world_size=world_size)

        torch.manual_seed(0)
        model = DDP(nn.Linear(10, 1).cuda(rank), device_ids=[rank])
        opt = torch.optim.SGD(model.parameters(), lr=lr)
        gen = torch.Generator().manual_seed(rank)
        for step in range(steps):
            x = torch.randn(32, 10, generator=gen).cuda(rank)
            y = x.sum(dim=1, keepdim=True)
            loss = nn.functional.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            print(f"final loss {loss.item():.4f}")
        dist.destroy_process_group()

    mp.spawn(worker, nprocs=world_size, join=True)


if __name__ == "__main__":
    launch(world_size=2, lr=0.05, steps=12)
