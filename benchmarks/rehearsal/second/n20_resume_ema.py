"""Train, save the averaged weights, resume: the second half goes on with the saved average."""
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
rank = dist.get_rank()
dev = torch.device("cuda", local_rank)
ckpt = os.path.join(tempfile.gettempdir(), f"ema_{os.environ.get('MASTER_PORT', '0')}.pt")

torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1)).to(dev), device_ids=[local_rank])
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
ema = {k: v.detach().clone() for k, v in model.module.state_dict().items()}
torch.manual_seed(30 + rank)


@torch.no_grad()
def update_ema(decay=0.9):
    for k, v in model.module.state_dict().items():
        ema[k].mul_(decay).add_(v, alpha=1 - decay)


def train(steps):
    for _ in range(steps):
        x = torch.randn(16, 6, device=dev)
        loss = F.mse_loss(model(x), x.prod(1, keepdim=True))
        opt.zero_grad()
        loss.backward()
        opt.step()
        update_ema()
    return loss.item()


first = train(3)
if rank == 0:
    torch.save(ema, ckpt)
dist.barrier(device_ids=[local_rank])
ema = torch.load(ckpt)
dist.barrier(device_ids=[local_rank])
if rank == 0:
    os.remove(ckpt)
second = train(3)
print(f"[{rank}] {first:.4f} -> {second:.4f}")
dist.destroy_process_group()
