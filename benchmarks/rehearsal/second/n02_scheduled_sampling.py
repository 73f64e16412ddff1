"""Seq2seq copy task with scheduled sampling."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

VOCAB, T, B, D = 20, 8, 16, 32


class CopyNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, D)
        self.enc = nn.GRU(D, D, batch_first=True)
        self.cell = nn.GRUCell(D, D)
        self.out = nn.Linear(D, VOCAB)

    def forward(self, src, p_model, gen):
        _, h = self.enc(self.emb(src))
        h = h[0]
        tok = torch.zeros(src.size(0), dtype=torch.long, device=src.device)
        logits = []
        for t in range(src.size(1)):
            h = self.cell(self.emb(tok), h)
            step_logits = self.out(h)
            logits.append(step_logits)
            if t % 2 == 0 and p_model > 0:
                probs = step_logits.detach().softmax(-1)
                tok = torch.multinomial(probs, 1, generator=gen).squeeze(1)
            else:
                tok = src[:, t]
        return torch.stack(logits, 1)


local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(CopyNet().cuda(), device_ids=[local_rank])
opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
gen = torch.Generator().manual_seed(1000 + rank)
for step in range(6):
    src = torch.randint(1, VOCAB, (B, T), generator=gen).cuda()
    p_model = 0.0 if step < 3 else 0.5
    logits = model(src, p_model, gen)
    loss = F.cross_entropy(logits.flatten(0, 1), src.flatten())
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    if rank == 0:
        print(f"step {step} p={p_model} loss {loss.item():.4f}")
dist.destroy_process_group()
