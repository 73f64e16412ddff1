"""WGAN with hand-made data parallelism; the critic's gradients travel while the host goes on."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
dev = torch.device("cuda", local_rank)
torch.manual_seed(0)
gen = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4)).to(dev)
critic = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 1)).to(dev)
opt_g = torch.optim.RMSprop(gen.parameters(), lr=5e-4)
opt_c = torch.optim.RMSprop(critic.parameters(), lr=5e-4)
torch.manual_seed(40 + rank)


def sync_grads(module):
    works = []
    for p in module.parameters():
        works.append(dist.all_reduce(p.grad, async_op=True))
    for p in module.parameters():
        p.grad.div_(world)
    for w in works:
        w.wait()


for step in range(6):
    real = torch.randn(32, 4, device=dev).cumsum(1)
    fake = gen(torch.randn(32, 8, device=dev)).detach()
    loss_c = critic(fake).mean() - critic(real).mean()
    opt_c.zero_grad()
    loss_c.backward()
    sync_grads(critic)
    opt_c.step()
    with torch.no_grad():
        for p in critic.parameters():
            p.clamp_(-0.05, 0.05)
    if step % 3 == 2:
        loss_g = -critic(gen(torch.randn(32, 8, device=dev))).mean()
        opt_g.zero_grad()
        loss_g.backward()
        sync_grads(gen)
        opt_g.step()
        if rank == 0:
            print(step, loss_c.item(), loss_g.item())
dist.destroy_process_group()
