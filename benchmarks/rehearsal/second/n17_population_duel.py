"""Population-based training: each member trains alone, the first two trade weights now and then."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
rank = dist.get_rank()
dev = torch.device("cuda", local_rank)
torch.manual_seed(rank)
lr = [0.3, 0.1, 0.03, 0.01][rank % 4]
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2)).to(dev)
opt = torch.optim.SGD(model.parameters(), lr=lr)
duellists = {0: 1, 1: 0}


def trade():
    peer = duellists[rank]
    mine = parameters_to_vector(model.parameters()).detach()
    other = torch.empty_like(mine)
    ops = [dist.P2POp(dist.isend, mine, peer), dist.P2POp(dist.irecv, other, peer)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    vector_to_parameters((mine + other) / 2, model.parameters())


def batch():
    x = torch.randn(32, 10, device=dev)
    return x, (x.sum(1) > 0).long()


history = []
for step in range(8):
    x, y = batch()
    loss = F.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    history.append(loss.item())
    if step % 4 == 3 and rank in duellists:
        trade()
with torch.no_grad():
    x, y = batch()
    acc = (model(x).argmax(1) == y).float().mean().item()
print(f"member {rank} lr {lr} loss {history[-1]:.3f} acc {acc:.2f}")
dist.destroy_process_group()
