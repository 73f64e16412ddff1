import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Meter:
    """Keeps a running mean over all workers."""

    def __init__(self):
        self.total = 0.0
        self.count = 0

    def add(self, value, n):
        self.total += value * n
        self.count += n

    def result(self):
        pair = torch.tensor([self.total, self.count], dtype=torch.float64)
        dist.all_reduce(pair)
        return (pair[0] / pair[1]).item()


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    rank = dist.get_rank()

    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(9, 27), nn.SiLU(), nn.Linear(27, 1)).to(device)
    model = DDP(net, device_ids=[local_rank])
    opt = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(600 + rank)

    for epoch in range(2):
        meter = Meter()
        for _ in range(5):
            x = torch.randn(20, 9, generator=gen).to(device)
            y = torch.cos(x[:, :1])
            loss = nn.functional.smooth_l1_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            meter.add(loss.item(), len(x))
        mean = meter.result()
        if rank == 0:
            print(f"epoch {epoch}: mean loss {mean:.5f}")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
