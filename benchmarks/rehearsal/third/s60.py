import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import fully_shard


@dataclass
class TrainConfig:
    dim: int = 32
    depth: int = 2
    steps: int = 10
    lr: float = 3e-3
    batch: int = 16


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.attn(x, x, x, need_weights=False)[0]
        return x + self.ff(x)


class Encoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.emb = nn.Embedding(30, cfg.dim)
        self.layers = nn.ModuleList([Layer(cfg.dim) for _ in range(cfg.depth)])
        self.out = nn.Linear(cfg.dim, 30)

    def forward(self, tokens):
        h = self.emb(tokens)
        for layer in self.layers:
            h = layer(h)
        return self.out(h)


def main(cfg):
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank = dist.get_rank()

    torch.manual_seed(0)
    model = Encoder(cfg).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)

    gen = torch.Generator().manual_seed(100 + rank)
    for step in range(cfg.steps):
        tokens = torch.randint(0, 30, (cfg.batch, 8), generator=gen).cuda()
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(TrainConfig())
