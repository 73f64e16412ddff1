import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class OverlappedSGD:
    def __init__(self, params, lr, world):
        self.params, self.lr, self.world = list(params), lr, world

    @torch.no_grad()
    def step(self):
        works = []
        for p in reversed(self.params):
            works.append(dist.all_reduce(p.grad, async_op=True))
        for p in reversed(self.params):
            p.add_(p.grad, alpha=-self.lr / self.world)
        for w in works:
            w.wait()

    def zero_grad(self):
        for p in self.params:
            p.grad = None


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)).cuda()
    opt = OverlappedSGD(model.parameters(), 0.1, world)
    gen = torch.Generator().manual_seed(rank)
    for step in range(4):
        x = torch.randn(32, 16, generator=gen).cuda()
        y = torch.randint(0, 4, (32,), generator=gen).cuda()
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            print(step, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
