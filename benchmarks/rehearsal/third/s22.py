import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

PATH = os.path.join(tempfile.gettempdir(), "zero_checkpoint.pt")


class Trainer:
    def __init__(self, rank, local_rank):
        self.rank = rank
        torch.manual_seed(3)
        net = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 1))
        self.model = DDP(net.cuda(), device_ids=[local_rank])
        self.opt = ZeroRedundancyOptimizer(self.model.parameters(), torch.optim.Adam, lr=3e-3)
        self.gen = torch.Generator().manual_seed(81 + rank)

    def step(self):
        x = torch.randn(20, 12, generator=self.gen).cuda()
        loss = nn.functional.mse_loss(self.model(x), x[:, :1] * x[:, 1:2])
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()

    def save(self):
        # every worker sends its part of the state to rank 0
        self.opt.consolidate_state_dict(to=0)
        if self.rank == 0:
            state = {"model": self.model.module.state_dict(), "opt": self.opt.state_dict()}
            torch.save(state, PATH)
        dist.barrier()


def main():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)

    trainer = Trainer(rank, local_rank)
    for epoch in range(2):
        for _ in range(5):
            loss = trainer.step()
        trainer.save()
        if rank == 0:
            size = os.path.getsize(PATH)
            print(f"epoch {epoch} loss {loss:.4f}, checkpoint {size} bytes")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
