import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

DIM, BATCH, MICRO = 8, 16, 4


class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(DIM, DIM)

    def forward(self, x):
        return x + torch.tanh(self.fc(x))


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(rank)
    part = Stage().to(device)
    stage = PipelineStage(part, rank, world, device)
    schedule = Schedule1F1B(stage, n_microbatches=MICRO, loss_fn=F.mse_loss)
    opt = torch.optim.SGD(part.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(3)
    dist.barrier()

    for step in range(3):
        x = torch.randn(BATCH, DIM, generator=gen)
        opt.zero_grad()
        if rank == 0:
            schedule.step(x.to(device))
        elif rank == world - 1:
            losses = []
            schedule.step(target=x.flip(1).to(device), losses=losses)
            print(f"step {step} loss {torch.stack(losses).mean().item():.4f}")
        else:
            schedule.step()
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
