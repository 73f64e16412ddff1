"""A residual MLP cut over the ranks with DTensor's tensor parallelism."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.up = nn.Linear(d, h)
        self.down = nn.Linear(h, d)

    def forward(self, x):
        return x + self.down(F.silu(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.b1, self.b2 = Block(16, 64), Block(16, 64)
        self.head = nn.Linear(16, 8)

    def forward(self, x):
        return self.head(self.b2(self.b1(x)))


local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cuda", (world,), mesh_dim_names=("tp",))
torch.manual_seed(0)
net = Net().cuda()
plan = {"head": ColwiseParallel(output_layouts=Replicate())}
for name in ("b1", "b2"):
    plan[f"{name}.up"] = ColwiseParallel()
    plan[f"{name}.down"] = RowwiseParallel()
net = parallelize_module(net, mesh["tp"], plan)
opt = torch.optim.AdamW(net.parameters(), lr=1e-2, foreach=False)

gen = torch.Generator(device="cuda").manual_seed(1)
for step in range(5):
    x = torch.randn(32, 16, device="cuda", generator=gen)
    y = x[:, :8].argmax(1)
    logits = net(x)
    loss = F.cross_entropy(logits, y)
    opt.zero_grad()
    loss.backward()
    grad = net.b1.up.weight.grad.full_tensor()
    opt.step()
    if rank == 0:
        acc = (logits.argmax(1) == y).float().mean().item()
        print(f"{step} loss {loss.item():.4f} acc {acc:.2f} |g| {grad.norm().item():.4f}")
dist.destroy_process_group()
