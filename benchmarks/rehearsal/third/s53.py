import math
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class SensorData(Dataset):
    """Sensor rows; a few of them were damaged while logging."""

    def __init__(self, n=256):
        g = torch.Generator().manual_seed(11)
        self.x = torch.randn(n, 8, generator=g)
        self.y = self.x[:, :2].sum(dim=1)
        self.x[37, 4] = math.nan

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def main():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)

    dataset = SensorData()
    sampler = DistributedSampler(dataset, seed=3)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)).cuda()
    model = DDP(model, device_ids=[local_rank])
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    for epoch in range(2):
        sampler.set_epoch(epoch)
        running = torch.zeros(2, device="cuda")
        for x, y in loader:
            x, y = x.cuda(), y.cuda()
            loss = nn.functional.mse_loss(model(x).squeeze(1), y)
            if not torch.isfinite(loss):
                print(f"rank {rank}: bad batch skipped")
                continue
            opt.zero_grad()
            loss.backward()
            opt.step()
            running += torch.stack([loss.detach(), torch.ones_like(loss)])
        dist.all_reduce(running)
        if rank == 0:
            print(f"epoch {epoch} loss {(running[0] / running[1]).item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
