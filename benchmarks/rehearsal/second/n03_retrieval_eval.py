"""Two-tower contrastive training, recall@k on the gathered validation set."""
import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.img = nn.Linear(24, 16)
        self.txt = nn.Linear(12, 16)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, a, b):
        return F.normalize(self.img(a), dim=-1), F.normalize(self.txt(b), dim=-1)


def gather_rows(t):
    parts = [torch.empty_like(t) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, t)
    return torch.cat(parts)


@torch.no_grad()
def recall_at(model, a, b, k=3):
    u, v = model.module(a, b)
    u, v = gather_rows(u.contiguous()), gather_rows(v.contiguous())
    sims = u @ v.t()
    ranked = np.argsort(-np.asarray(sims), axis=1)[:, :k]
    return float((ranked == np.arange(len(ranked))[:, None]).any(axis=1).mean())


local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
rank = dist.get_rank()
dev = torch.device("cuda", local_rank)
torch.manual_seed(0)
model = DDP(Towers().to(dev), device_ids=[local_rank])
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
torch.manual_seed(10 + rank)
mix = torch.randn(24, 12, device=dev)
for step in range(4):
    a = torch.randn(32, 24, device=dev)
    u, v = model(a, a @ mix)
    logits = model.module.scale.exp() * u @ v.t()
    loss = F.cross_entropy(logits, torch.arange(32, device=dev))
    opt.zero_grad()
    loss.backward()
    opt.step()
val = torch.randn(16, 24, device=dev)
r3 = recall_at(model, val, val @ mix)
if rank == 0:
    print("recall@3", r3)
dist.destroy_process_group()
