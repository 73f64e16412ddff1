"""Imbalanced classes, weighted sampling on the host, batches copied on a stream of their own."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
dev = torch.device("cuda", local_rank)

host_gen = torch.Generator().manual_seed(rank)
X = torch.randn(256, 10, generator=host_gen)
Y = (X[:, 0] > 1.0).long()
weights = torch.where(Y == 1, 5.0, 1.0)


class Prefetcher:
    def __init__(self, steps, batch):
        self.steps, self.batch = steps, batch
        self.stream = torch.cuda.Stream()

    def load(self):
        idx = torch.multinomial(weights, self.batch, generator=host_gen)
        x, y = X[idx].pin_memory(), Y[idx].pin_memory()
        with torch.cuda.stream(self.stream):
            return x.to(dev, non_blocking=True), y.to(dev, non_blocking=True)

    def __iter__(self):
        pending = self.load()
        for i in range(self.steps):
            main = torch.cuda.current_stream()
            main.wait_stream(self.stream)
            x, y = pending
            x.record_stream(main)
            y.record_stream(main)
            if i + 1 < self.steps:
                pending = self.load()
            yield x, y


torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2)).to(dev), device_ids=[local_rank])
opt = torch.optim.SGD(model.parameters(), lr=0.1)
log = torch.zeros(6, pin_memory=True)
for step, (x, y) in enumerate(Prefetcher(6, 32)):
    loss = F.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    log[step].copy_(loss.detach(), non_blocking=True)
done = torch.cuda.current_stream().record_event()
done.synchronize()
if rank == 0:
    print([round(v, 3) for v in log.tolist()])
dist.destroy_process_group()
