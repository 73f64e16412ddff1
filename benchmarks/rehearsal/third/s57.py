import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class FeedForward(nn.Module):
    def __init__(self, dim=16, hidden=64):
        super().__init__()
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def main():
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh("cuda", (world,), mesh_dim_names=("tp",))

    torch.manual_seed(42)
    model = FeedForward().cuda()
    model = parallelize_module(
        model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()}
    )
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3)

    gen = torch.Generator().manual_seed(42 + rank)
    for step in range(12):
        x = torch.randn(32, 16, generator=gen).cuda()
        target = x.roll(1, dims=1)
        loss = nn.functional.mse_loss(model(x), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 3 == 0:
            print(f"step {step} loss {loss.item():.4f}")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
