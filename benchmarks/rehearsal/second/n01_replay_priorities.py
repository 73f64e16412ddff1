"""Double DQN on a toy chain, prioritised replay, one environment per rank."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

OBS, ACT, CAP, BATCH = 6, 3, 128, 16


class Replay:
    def __init__(self, device):
        self.obs = torch.zeros(CAP, OBS)
        self.act = torch.zeros(CAP, dtype=torch.long)
        self.ret = torch.zeros(CAP)
        self.prio = torch.full((CAP,), 1e-3, device=device)
        self.n = 0

    def push(self, obs, act, ret):
        i = self.n % CAP
        self.obs[i], self.act[i], self.ret[i] = obs, act, ret
        self.prio[i] = 1.0
        self.n += 1

    def sample(self, k, device):
        idx = torch.multinomial(self.prio, k)
        obs = self.obs[idx].to(device)
        act = self.act[idx].to(device)
        ret = self.ret[idx].to(device)
        return idx, obs, act, ret


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    device = torch.device("cuda", local_rank)
    torch.manual_seed(dist.get_rank())
    net = DDP(nn.Sequential(nn.Linear(OBS, 32), nn.ReLU(), nn.Linear(32, ACT)).to(device), device_ids=[local_rank])
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    buf = Replay(device)
    for _ in range(CAP):
        o = torch.randn(OBS)
        a = int(torch.randint(ACT, (1,)))
        buf.push(o, a, float(o[a]))
    for step in range(5):
        idx, obs, act, ret = buf.sample(BATCH, device)
        q = net(obs).gather(1, act[:, None]).squeeze(1)
        loss = F.smooth_l1_loss(q, ret)
        opt.zero_grad()
        loss.backward()
        opt.step()
        buf.prio[idx] = (q - ret).abs().detach() + 1e-3
        print(step, loss.item())
    dist.destroy_process_group()


main()
