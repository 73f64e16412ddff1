import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class Prefetcher:
    def __init__(self, batches, device):
        self.it, self.device = iter(batches), device
        self.stream = torch.cuda.Stream()
        self.preload()

    def preload(self):
        item = next(self.it, None)
        if item is None:
            self.nxt = None
            return
        with torch.cuda.stream(self.stream):
            self.nxt = [t.pin_memory().to(self.device, non_blocking=True) for t in item]

    def __iter__(self):
        while self.nxt is not None:
            cur = self.nxt
            self.preload()
            yield cur


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    device = torch.device("cuda", local_rank)
    torch.manual_seed(0)
    model = DDP(nn.Linear(32, 4).to(device), device_ids=[local_rank])
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(dist.get_rank())
    batches = [(torch.randn(64, 32, generator=gen), torch.randint(0, 4, (64,), generator=gen))
               for _ in range(5)]
    for x, y in Prefetcher(batches, device):
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("rank", dist.get_rank(), "loss", loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
