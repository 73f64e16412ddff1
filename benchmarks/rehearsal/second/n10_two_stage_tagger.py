"""A tagger over two GPUs: convolutional encoder on rank 0, recurrent head on rank 1."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

B, T, D, TAGS = 4, 10, 16, 5


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(50, D)
        self.ff = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, ids):
        e = self.emb(ids)
        return e + self.ff(e)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(D, D)
        self.out = nn.Linear(D, TAGS)

    def forward(self, h):
        return self.out(self.rnn(h)[0])


local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
rank = dist.get_rank()
dev = torch.device("cuda", local_rank)
torch.manual_seed(0)
stage = (Encoder() if rank == 0 else Head()).to(dev)
opt = torch.optim.Adam(stage.parameters(), lr=1e-3)
gen = torch.Generator(device=dev).manual_seed(7)
for step in range(4):
    ids = torch.randint(50, (B, T), device=dev, generator=gen)
    opt.zero_grad()
    if rank == 0:
        h = stage(ids).transpose(0, 1)
        dist.send(h.detach(), dst=1)
        grad = torch.empty(T, B, D, device=dev)
        dist.recv(grad, src=1)
        h.backward(grad)
    else:
        h = torch.empty(T, B, D, device=dev)
        dist.recv(h, src=0)
        h.requires_grad_()
        loss = F.cross_entropy(stage(h).flatten(0, 1), (ids.t() % TAGS).flatten())
        loss.backward()
        dist.send(h.grad, dst=0)
        print(step, loss.item())
    opt.step()
dist.destroy_process_group()
