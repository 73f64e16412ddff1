import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe


class Front(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32))

    def forward(self, x):
        return torch.relu(self.net(x))


class Back(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, h):
        return self.net(h)


def main():
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    assert world == 2
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)

    torch.manual_seed(rank)
    module = (Front() if rank == 0 else Back()).to(device)
    stage = PipelineStage(module, stage_index=rank, num_stages=world, device=device)
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.cross_entropy)
    opt = torch.optim.SGD(module.parameters(), lr=0.1)

    gen = torch.Generator().manual_seed(2)
    for step in range(6):
        x = torch.randn(32, 12, generator=gen).to(device)
        y = x[:, :4].argmax(dim=1)
        opt.zero_grad()
        if rank == 0:
            schedule.step(x)
        else:
            losses = []
            schedule.step(target=y, losses=losses)
            print(f"step {step} loss {torch.stack(losses).mean().item():.4f}")
        opt.step()

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
