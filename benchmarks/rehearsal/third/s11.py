import os
import random

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        return x + self.net(x)


class LayerDropNet(nn.Module):
    def __init__(self, dim=32, depth=6, drop=0.4):
        super().__init__()
        self.drop = drop
        self.stem = nn.Linear(10, dim)
        self.blocks = nn.ModuleList([Block(dim) for _ in range(depth)])
        self.head = nn.Linear(dim, 2)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            if self.training and random.random() < self.drop:
                continue
            x = block(x)
        return self.head(x)


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank = dist.get_rank()

    torch.manual_seed(1234)
    random.seed(1234 + rank)
    model = LayerDropNet().cuda()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)

    data = torch.Generator().manual_seed(9 + rank)
    for step in range(8):
        x = torch.randn(20, 10, generator=data).cuda()
        y = (x[:, 0] > 0).long().cuda()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        if rank == 0:
            print(step, loss.item())

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
