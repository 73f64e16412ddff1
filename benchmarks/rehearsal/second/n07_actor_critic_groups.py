"""Actor-critic; each network averages its gradients over a group of its own."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
dev = torch.device("cuda", local_rank)

ranks = list(range(world))
groups = {"actor": dist.new_group(ranks), "critic": dist.new_group(ranks)}

torch.manual_seed(0)
nets = {
    "actor": nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4)).to(dev),
    "critic": nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).to(dev),
}
opts = {k: torch.optim.Adam(m.parameters(), lr=1e-3) for k, m in nets.items()}
torch.manual_seed(100 + rank)


def loss_of(name, obs, act, ret):
    value = nets["critic"](obs).squeeze(-1)
    if name == "critic":
        return (value - ret).pow(2).mean()
    logp = nets["actor"](obs).log_softmax(-1).gather(1, act[:, None]).squeeze(1)
    return -(logp * (ret - value).detach()).mean()


def update(name, obs, act, ret):
    loss = loss_of(name, obs, act, ret)
    opts[name].zero_grad()
    loss.backward()
    for p in nets[name].parameters():
        dist.all_reduce(p.grad, group=groups[name])
        p.grad /= world
    opts[name].step()
    return loss.item()


schedule = ("actor", "critic") if rank < world // 2 else ("critic", "actor")
for it in range(4):
    obs = torch.randn(32, 8, device=dev)
    act = torch.randint(4, (32,), device=dev)
    ret = obs.sum(1)
    logs = {name: update(name, obs, act, ret) for name in schedule}
    if rank == 0:
        print(it, logs)
dist.destroy_process_group()
