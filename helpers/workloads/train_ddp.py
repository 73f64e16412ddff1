"""Trains a linear layer with DDP: the shortest complete script for torchrun.

Chapter 03 shows it and starts it. Two processes on this machine:

torchrun --nproc-per-node=2 -m helpers.workloads.train_ddp
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    """Runs once in each process. torchrun has set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT."""
    dist.init_process_group("gloo")  # on GPUs: "nccl", after torch.cuda.set_device(LOCAL_RANK)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(64, 10))
    optimizer, data = torch.optim.AdamW(model.parameters(), lr=1e-2), examples()
    loader = DataLoader(data, batch_size=64, sampler=DistributedSampler(data))
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
    report(loss.detach())
    dist.destroy_process_group()


def examples() -> TensorDataset:
    """1,000 random vectors, each with the class that a fixed random matrix gives it."""
    generator = torch.Generator().manual_seed(0)  # the same data in every process
    x, weight = torch.randn(1000, 64, generator=generator), torch.randn(64, 10, generator=generator)
    return TensorDataset(x, (x @ weight).argmax(1))


def report(loss: torch.Tensor) -> None:
    """Averages the loss and lets rank 0 print it. Rank 0 would also save `model.module.state_dict()` here."""
    dist.all_reduce(loss, op=dist.ReduceOp.AVG)
    where = f"rank {dist.get_rank()} is process {os.environ['LOCAL_RANK']} of agent {os.environ['GROUP_RANK']}"
    places = [None] * dist.get_world_size()
    dist.all_gather_object(places, where)
    if dist.get_rank() == 0:
        print(*places, f"last loss {loss.item():.4f}", sep="\n", flush=True)


if __name__ == "__main__":
    from helpers.ranks.inplace import leave

    main()
    leave(0)  # ends the process without destroying the interpreter, which threads of gloo may not survive
