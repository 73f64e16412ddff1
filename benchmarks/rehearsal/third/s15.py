import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset


@dataclass
class Config:
    seed: int = 2024
    batches: int = 12
    batch_size: int = 16
    features: int = 10
    lr: float = 2e-2


class Simulator(IterableDataset):
    """Endless simulated samples, cut after `length`."""

    def __init__(self, length, features, seed):
        self.length = length
        self.features = features
        self.seed = seed

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed)
        for _ in range(self.length):
            x = torch.randn(self.features, generator=g)
            yield x, torch.sin(x).sum().unsqueeze(0)


def main(cfg):
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.manual_seed(cfg.seed)

    source = Simulator(cfg.batches * cfg.batch_size, cfg.features, cfg.seed)
    loader = DataLoader(source, batch_size=cfg.batch_size)
    net = nn.Sequential(nn.Linear(cfg.features, 30), nn.Tanh(), nn.Linear(30, 1)).cuda()
    model = DDP(net, device_ids=[local_rank])
    opt = torch.optim.SGD(model.parameters(), lr=cfg.lr)

    for step, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x.cuda()), y.cuda())
        opt.zero_grad()
        loss.backward()
        opt.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step}: loss {mean.item() / dist.get_world_size():.4f}")

    dist.destroy_process_group()


if __name__ == "__main__":
    main(Config())
