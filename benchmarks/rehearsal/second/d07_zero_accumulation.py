"""Next-character model: DDP, gradient accumulation, optimizer state cut over the ranks, one checkpoint."""
import contextlib
import io
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

TEXT = "the quick brown fox jumps over the lazy dog " * 20
CHARS = sorted(set(TEXT))
ACCUM, B, T = 3, 8, 12


class CharNet(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.emb = nn.Embedding(len(CHARS), d)
        self.mix = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.out = nn.Linear(d, len(CHARS))

    def forward(self, ids):
        h = self.emb(ids)
        h = h + checkpoint(self.mix, h, use_reentrant=False)
        return self.out(h)


local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
rank = dist.get_rank()
ids = torch.tensor([CHARS.index(c) for c in TEXT]).cuda()
torch.manual_seed(0)
model = DDP(CharNet().cuda(), device_ids=[local_rank])
opt = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=3e-3)
torch.manual_seed(80 + rank)
for step in range(4):
    opt.zero_grad()
    for micro in range(ACCUM):
        start = torch.randint(len(ids) - T - 1, (B, 1), device="cuda")
        win = ids[start + torch.arange(T + 1, device="cuda")]
        sync = contextlib.nullcontext() if micro == ACCUM - 1 else model.no_sync()
        with sync:
            loss = F.cross_entropy(model(win[:, :-1]).flatten(0, 1), win[:, 1:].flatten()) / ACCUM
            loss.backward()
    opt.step()
    if rank == 0:
        print(step, loss.item() * ACCUM)
opt.consolidate_state_dict(to=0)
if rank == 0:
    blob = io.BytesIO()
    torch.save({"model": model.module.state_dict(), "opt": opt.state_dict()}, blob)
    print("checkpoint", blob.tell() // 1024, "KiB")
dist.barrier(device_ids=[local_rank])
dist.destroy_process_group()
