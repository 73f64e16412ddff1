import contextlib
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class AccumulatingTrainer:
    def __init__(self, model, optimizer, accum):
        self.model = model
        self.optimizer = optimizer
        self.accum = accum
        self.step_count = 0

    def sync_context(self):
        if self.step_count % self.accum == 0:
            return contextlib.nullcontext()
        return self.model.no_sync()

    def step(self, x, y):
        with self.sync_context():
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = nn.functional.mse_loss(self.model(x).float(), y)
            (loss / self.accum).backward()
        if (self.step_count + 1) % self.accum == 0:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        self.step_count += 1
        return loss.detach()


def main():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)

    net = nn.Sequential(nn.Linear(8, 40), nn.ReLU(), nn.Linear(40, 1)).to(device)
    model = DDP(net, device_ids=[local_rank])
    trainer = AccumulatingTrainer(model, torch.optim.AdamW(model.parameters(), lr=1e-2), accum=4)

    gen = torch.Generator().manual_seed(900 + rank)
    for i in range(16):
        x = torch.randn(16, 8, generator=gen).to(device)
        y = x.pow(2).sum(dim=1, keepdim=True)
        loss = trainer.step(x, y)
        if rank == 0 and (i + 1) % 4 == 0:
            print(f"update {(i + 1) // 4}: loss {loss.item():.4f}")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
