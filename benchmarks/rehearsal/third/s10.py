import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class AutoEncoder(nn.Module):
    def __init__(self, dim=20, code=6):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(dim, code), nn.ReLU())
        self.dec = nn.Linear(code, dim)

    def forward(self, x):
        code = self.enc(x)
        return self.dec(code), code

    def loss(self, x):
        recon, code = self(x)
        return nn.functional.mse_loss(recon, x) + 1e-3 * code.abs().mean()


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank = dist.get_rank()

    g = torch.Generator().manual_seed(6)
    data = TensorDataset(torch.rand(256, 20, generator=g))
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=16, sampler=sampler)

    model = DDP(AutoEncoder().cuda(), device_ids=[local_rank])
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cuda")

    for epoch in range(3):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            opt.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model.module.loss(x.cuda())
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        value = loss.detach().clone()
        dist.all_reduce(value)
        if rank == 0:
            print(f"epoch {epoch} loss {value.item() / dist.get_world_size():.4f}")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
