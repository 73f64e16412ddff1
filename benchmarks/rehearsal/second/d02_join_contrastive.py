"""SimCLR-like training on shards of unequal length."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
rank = dist.get_rank()
dev = torch.device("cuda", local_rank)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8)).to(dev)
model = DDP(net, device_ids=[local_rank])
opt = torch.optim.SGD(model.parameters(), lr=0.05)

gen = torch.Generator().manual_seed(rank)
batches = [torch.randn(12, 16, generator=gen) for _ in range(3 + 2 * rank)]


def nt_xent(z, tau=0.2):
    n = z.size(0) // 2
    z = F.normalize(z, dim=-1)
    sim = z @ z.t() / tau
    sim = sim.masked_fill(torch.eye(2 * n, dtype=torch.bool, device=z.device), float("-inf"))
    target = torch.arange(2 * n, device=z.device).roll(n)
    return F.cross_entropy(sim, target)


stats = torch.zeros(2, device=dev)
with Join([model]):
    for x in batches:
        x = x.to(dev)
        views = torch.cat([x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)])
        loss = nt_xent(model(views))
        opt.zero_grad()
        loss.backward()
        opt.step()
        stats += torch.stack([loss.detach(), torch.ones((), device=dev)])
dist.all_reduce(stats)
if rank == 0:
    print("mean loss", (stats[0] / stats[1]).item(), "batches", int(stats[1].item()))
dist.destroy_process_group()
