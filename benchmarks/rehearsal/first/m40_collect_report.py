# rehearse with: --nproc 4 --nnodes 2
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
device = torch.device("cuda", rank)


def report(loss, world):
    """Losses of all ranks, on the main process."""
    value = loss.detach().reshape(1)
    slots = [torch.empty_like(value) for _ in range(world)] if rank == 0 else None
    dist.gather(value, slots, dst=0)
    if rank == 0:
        return torch.cat(slots).cpu()
    return None


def main():
    dist.init_process_group("nccl")
    world = dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(nn.Linear(12, 4).to(device), device_ids=[rank])
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(dist.get_rank())
    for step in range(4):
        x = torch.randn(16, 12, generator=gen).to(device)
        loss = F.cross_entropy(model(x), x[:, :4].argmax(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses = report(loss, world)
        if losses is not None:
            print(f"step {step} mean {losses.mean():.4f} max {losses.max():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
