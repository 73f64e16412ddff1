import os

import torch
import torch.distributed as dist
import torch.nn as nn


def broadcast_model(model):
    for t in list(model.parameters()) + list(model.buffers()):
        dist.broadcast(t.data, src=0)


def reduce_gradients(model):
    """Start all reductions at once so that they overlap."""
    world = dist.get_world_size()
    for p in model.parameters():
        p.grad.div_(world)
        dist.all_reduce(p.grad, async_op=True)


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    rank = dist.get_rank()

    model = nn.Sequential(
        nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    ).to(device)
    broadcast_model(model)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    gen = torch.Generator().manual_seed(333 + rank)

    for step in range(8):
        x = torch.randn(32, 64, generator=gen).to(device)
        y = x[:, :10].argmax(dim=1)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        reduce_gradients(model)
        opt.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}")

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
