"""Greedy decoding on every rank, hypotheses collected for one BLEU-like score."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

VOCAB, T, B, D = 30, 6, 8, 32


class Shift(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, D)
        self.mix = nn.TransformerEncoderLayer(D, 4, 64, dropout=0.0, batch_first=True)
        self.out = nn.Linear(D, VOCAB)

    def forward(self, ids):
        return self.out(self.mix(self.emb(ids)))


def collect(t):
    parts = [torch.empty_like(t) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, t)
    return torch.cat(parts)


def overlap(hyp, ref):
    return (hyp == ref).float().mean().item()


local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(Shift().cuda(), device_ids=[local_rank])
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
torch.manual_seed(50 + rank)
for step in range(4):
    src = torch.randint(VOCAB, (B, T), device="cuda")
    tgt = (src + 1) % VOCAB
    loss = F.cross_entropy(model(src).flatten(0, 1), tgt.flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
model.eval()
with torch.no_grad():
    src = torch.randint(VOCAB, (B, T), device="cuda")
    hyp = model(src).argmax(-1).to(torch.int16)
    ref = ((src + 1) % VOCAB).to(torch.int16)
    hyps, refs = collect(hyp), collect(ref)
if rank == 0:
    print("overlap", overlap(hyps, refs), "loss", loss.item())
dist.destroy_process_group()
