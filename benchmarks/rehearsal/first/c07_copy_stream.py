import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class Prefetcher:
    def __init__(self, batches):
        self.it, self.stream = iter(batches), torch.cuda.Stream()
        self._load()

    def _load(self):
        item = next(self.it, None)
        self.nxt = None
        if item is not None:
            with torch.cuda.stream(self.stream):
                self.nxt = [t.cuda(non_blocking=True) for t in item]

    def __iter__(self):
        while self.nxt is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
            cur = self.nxt
            for t in cur:
                t.record_stream(torch.cuda.current_stream())
            self._load()
            yield cur


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = DDP(nn.Linear(16, 4).cuda(), device_ids=[local_rank])
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(dist.get_rank())
    batches = [(torch.randn(32, 16, generator=gen).pin_memory(),
                torch.randint(0, 4, (32,), generator=gen).pin_memory()) for _ in range(5)]
    host = torch.zeros(5).pin_memory()
    for i, (x, y) in enumerate(Prefetcher(batches)):
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        host[i].copy_(loss.detach(), non_blocking=True)
    torch.cuda.synchronize()
    print("rank", dist.get_rank(), "losses", [round(v, 4) for v in host.tolist()])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
