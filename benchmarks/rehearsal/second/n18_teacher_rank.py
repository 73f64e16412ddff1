"""Distillation with the teacher on its own GPU: rank 0 teaches, rank 1 learns."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

B, D, H, C = 16, 12, 24, 5


class Net(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.body = nn.Linear(D, hidden)
        self.proj = nn.Linear(hidden, H)
        self.head = nn.Linear(H, C)

    def forward(self, x):
        f = self.proj(self.body(x).relu())
        return self.head(f.relu()), f


def teach(net, x):
    with torch.no_grad():
        logits, feats = net(x)
    ops = [dist.P2POp(dist.isend, t, 1) for t in (logits, feats)]
    for w in dist.batch_isend_irecv(ops):
        w.wait()


def learn(net, opt, x):
    logits, feats = torch.empty(B, C, device=x.device), torch.empty(B, H, device=x.device)
    for t in (logits, feats):
        dist.recv(t, src=0)
    out, f = net(x)
    kd = F.kl_div(out.log_softmax(-1), logits.softmax(-1), reduction="batchmean")
    loss = kd + 0.1 * F.mse_loss(f, feats)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()


local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.manual_seed(rank)
net = Net(128 if rank == 0 else 16).cuda()
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
x = torch.empty(B, D, device="cuda")
for step in range(4):
    x.normal_()
    dist.broadcast(x, src=0)
    if rank == 0:
        teach(net, x)
    else:
        print(step, learn(net, opt, x).item())
dist.destroy_process_group()
