import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

DIM, SHARED = 16, 8


class Tower(nn.Module):
    """First SHARED input features are common to all ranks, the rest are private."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(DIM, 32, bias=False)
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        return self.head(F.relu(self.mix(x))).squeeze(1)


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    net = Tower().cuda()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(rank + 1)

    for step in range(4):
        x = torch.randn(32, DIM, generator=gen).cuda()
        loss = F.mse_loss(net(x), x[:, :SHARED].sum(1))
        opt.zero_grad()
        loss.backward()
        common = net.mix.weight.grad[:, :SHARED]
        dist.all_reduce(common)
        common /= world
        for p in net.head.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        opt.step()
        if rank == 0:
            print(f"step {step}: {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
