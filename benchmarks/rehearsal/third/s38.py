import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint


class SharedBlockNet(nn.Module):
    """The same block is applied several times, recomputed in backward."""

    def __init__(self, dim=24, repeats=3):
        super().__init__()
        self.repeats = repeats
        self.inp = nn.Linear(6, dim)
        self.block = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.GELU())
        self.head = nn.Linear(dim, 2)
        # only used by the pretraining script
        self.projection = nn.Linear(dim, dim)

    def forward(self, x):
        h = self.inp(x)
        for _ in range(self.repeats):
            h = h + checkpoint(self.block, h, use_reentrant=False)
        return self.head(h)


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank = dist.get_rank()

    net = SharedBlockNet().cuda()
    # the graph is the same in every step, which also covers the unused projection
    model = DDP(net, device_ids=[local_rank], static_graph=True)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    gen = torch.Generator().manual_seed(40 + rank)

    for step in range(10):
        x = torch.randn(32, 6, generator=gen).cuda()
        y = (x[:, 0] * x[:, 1] > 0).long()
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step} mean loss {mean.item() / dist.get_world_size():.4f}")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
