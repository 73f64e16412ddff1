"""A regression whose last rank writes the report: torchrun --nproc-per-node=3 patient_11.py"""

import torch
import torch.distributed as dist
from torch import nn


def share(model, group):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG, group=group)


def report(loss, group):
    mean = loss.detach().clone()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG, group=group)
    return mean.item()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weights, numbers = dist.new_group(), dist.new_group()
    torch.manual_seed(1 + rank)
    for step in range(4):
        x = torch.randn(16, 8)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        print(f"rank {rank}: step {step} backward is done", flush=True)
        if rank == world - 1:
            print(f"rank {rank}: step {step} loss {report(loss, numbers):.3f}", flush=True)
            share(model, weights)
        else:
            share(model, weights)
            report(loss, numbers)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
