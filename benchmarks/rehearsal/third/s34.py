import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class MLP(nn.Module):
    def __init__(self, width=48, depth=3):
        super().__init__()
        self.inp = nn.Linear(12, width)
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        x = torch.relu(self.inp(x))
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(x)


def log_weights(model, step):
    for name in ("inp", "head"):
        weight = getattr(model, name).weight
        full = weight.full_tensor()
        print(f"[{step}] {name}: norm {full.norm().item():.4f}")


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cuda", (world,))

    torch.manual_seed(2)
    model = MLP().cuda()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)

    g = torch.Generator().manual_seed(40 + rank)
    for step in range(10):
        x = torch.randn(24, 12, generator=g).cuda()
        y = x[:, :3].argmax(dim=1)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        if rank == 0 and (step + 1) % 5 == 0:
            log_weights(model, step + 1)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
