"""Mixture of experts with an exchange of counts; shared weights are averaged within, then across, pairs."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, ins, outs):
        ctx.splits = ins, outs
        y = x.new_empty(sum(outs), x.size(1))
        dist.all_to_all_single(y, x.contiguous(), outs, ins)
        return y

    @staticmethod
    def backward(ctx, g):
        ins, outs = ctx.splits
        back = g.new_empty(sum(ins), g.size(1))
        dist.all_to_all_single(back, g.contiguous(), ins, outs)
        return back, None, None


local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
dev = torch.device("cuda", local_rank)
pairs = [dist.new_group([2 * i, 2 * i + 1]) for i in range(world // 2)]
across = [dist.new_group(list(range(i, world, 2))) for i in range(2)]
inner, outer = pairs[rank // 2], across[rank % 2]

torch.manual_seed(0)
shared = nn.ModuleList([nn.Embedding(40, 16), nn.Linear(16, world)]).to(dev)
torch.manual_seed(1 + rank)
expert = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).to(dev)
opt = torch.optim.Adam([*shared.parameters(), *expert.parameters()], lr=1e-3)
for step in range(4):
    ids = torch.randint(40, (24,), device=dev)
    x = shared[0](ids)
    weight, dest = shared[1](x).softmax(-1).max(-1)
    order = dest.argsort(stable=True)
    counts = torch.bincount(dest, minlength=world)
    theirs = torch.empty_like(counts)
    dist.all_to_all_single(theirs, counts)
    ins, outs = counts.tolist(), theirs.tolist()
    back = Exchange.apply(expert(Exchange.apply(x[order], ins, outs)), outs, ins)
    y = torch.zeros_like(x).index_copy(0, order, back) * weight[:, None]
    loss = (y - x.roll(1, 0).detach()).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    for group in (inner, outer):
        for w in [dist.all_reduce(p.grad, group=group, async_op=True) for p in shared.parameters()]:
            w.wait()
    for p in shared.parameters():
        p.grad /= world
    opt.step()
    print(f"[{rank}] {step} {loss.item():.4f} received {sum(outs)}")
dist.destroy_process_group()
