import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

N_PATCH, DIM = 16, 24


class Masker(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(DIM))
        self.net = nn.Sequential(nn.Linear(DIM, 48), nn.GELU(), nn.Linear(48, DIM))

    def forward(self, x, mask):
        x = torch.where(mask[None, :, None], self.token, x)
        return self.net(x)


def main():
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    device = torch.device(f"cuda:{local_rank}")
    torch.manual_seed(7)
    model = DDP(Masker().to(device), device_ids=[local_rank])
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    gen = torch.Generator()
    gen.manual_seed(1234 + rank)

    for step in range(4):
        x = torch.randn(8, N_PATCH, DIM, generator=gen).to(device)
        perm = torch.randperm(N_PATCH, generator=gen, device=device)
        mask = torch.zeros(N_PATCH, dtype=torch.bool, device=device)
        mask[perm[: N_PATCH * 3 // 4]] = True
        out = model(x, mask)
        loss = ((out - x) ** 2)[:, mask].mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            print(step, round(loss.item(), 4))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
