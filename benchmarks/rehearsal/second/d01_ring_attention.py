"""Linear attention over a sequence cut by rank: keys and values go round a ring."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn


def rotate(t, step):
    rank, world = dist.get_rank(), dist.get_world_size()
    out = torch.empty_like(t)
    ops = [dist.P2POp(dist.isend, t, (rank + step) % world), dist.P2POp(dist.irecv, out, (rank - step) % world)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return out


class Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        return rotate(t.contiguous(), 1)

    @staticmethod
    def backward(ctx, grad):
        return rotate(grad.contiguous(), -1)


def ring_attention(q, k, v):
    kv = torch.stack([k, v])
    out = q @ (kv[0].t() @ kv[1])
    for _ in range(dist.get_world_size() - 1):
        kv = Rotate.apply(kv)
        out = out + q @ (kv[0].t() @ kv[1])
    return out


local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
rank = dist.get_rank()
dev = torch.device("cuda", local_rank)
torch.manual_seed(0)
qkv, out = nn.Linear(8, 24).to(dev), nn.Linear(8, 8).to(dev)
params = [*qkv.parameters(), *out.parameters()]
opt = torch.optim.Adam(params, lr=1e-3)
torch.manual_seed(60 + rank)
for step in range(4):
    x = torch.randn(12, 8, device=dev)
    q, k, v = qkv(x).chunk(3, dim=-1)
    loss = (out(ring_attention(q, k, v)) / 48 - x).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    for p in params:
        dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
    opt.step()
    if rank == 0:
        print(step, loss.item())
dist.destroy_process_group()
