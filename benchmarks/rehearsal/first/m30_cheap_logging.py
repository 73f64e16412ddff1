import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class Meter:
    def __init__(self, names):
        self.names, self.sum, self.n = names, [0.0] * len(names), 0

    def update(self, *values):
        packed = torch.stack([v.detach() for v in values])
        host = packed.to("cpu", non_blocking=True)
        for i, v in enumerate(host.tolist()):
            self.sum[i] += v
        self.n += 1

    def __str__(self):
        return " ".join(f"{k} {s / self.n:.4f}" for k, s in zip(self.names, self.sum))


def main():
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    device = torch.device("cuda", local_rank)
    torch.manual_seed(0)
    model = DDP(nn.Linear(20, 5).to(device), device_ids=[local_rank])
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(rank)
    meter = Meter(["loss", "acc"])
    for step in range(6):
        x = torch.randn(32, 20, generator=gen).to(device)
        y = torch.randint(0, 5, (32,), generator=gen).to(device)
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        meter.update(loss, (logits.argmax(1) == y).float().mean())
    if rank == 0:
        print(meter)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
