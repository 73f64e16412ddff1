import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def noisy(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=g)
    return x, x.sum(dim=1, keepdim=True) + torch.randn(n, 1, generator=g)


class Run:
    def __init__(self, rank, local_rank):
        self.rank = rank
        self.device = torch.device("cuda", local_rank)
        self.model = DDP(nn.Linear(6, 1).to(self.device), device_ids=[local_rank])
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.2)
        self.sched = torch.optim.lr_scheduler.ReduceLROnPlateau(self.opt, factor=0.5, patience=0)
        self.train_data = noisy(64, 1000 + rank)
        self.val_data = noisy(16, 2000 + rank)

    def train(self):
        x, y = self.train_data
        for i in range(0, 64, 8):
            bx, by = x[i:i + 8].to(self.device), y[i:i + 8].to(self.device)
            self.opt.zero_grad()
            nn.functional.mse_loss(self.model(bx), by).backward()
            self.opt.step()

    @torch.no_grad()
    def validate(self):
        x, y = self.val_data
        return nn.functional.mse_loss(self.model.module(x.to(self.device)), y.to(self.device))

    def fit(self, epochs):
        for epoch in range(epochs):
            self.train()
            val = self.validate()
            self.sched.step(val.item())
            if self.rank == 0:
                lr = self.opt.param_groups[0]["lr"]
                print(f"epoch {epoch} val {val.item():.4f} lr {lr:.5f}")


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    Run(dist.get_rank(), local_rank).fit(12)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
