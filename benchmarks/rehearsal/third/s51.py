import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class TwoHeadNet(nn.Module):
    def __init__(self, use_aux=False):
        super().__init__()
        self.use_aux = use_aux
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ReLU())
        self.main_head = nn.Linear(32, 4)
        self.aux_head = nn.Linear(32, 4)

    def forward(self, x):
        h = self.body(x)
        out = self.main_head(h)
        if self.use_aux:
            out = out + 0.3 * self.aux_head(h)
        return out


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank = dist.get_rank()

    g = torch.Generator().manual_seed(0)
    x = torch.randn(128, 16, generator=g)
    y = x[:, :4].argmax(dim=1)
    dataset = TensorDataset(x, y)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler, drop_last=True)

    model = TwoHeadNet().cuda()
    model = DDP(model, device_ids=[local_rank])
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)

    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            logits = model(x.cuda())
            loss = nn.functional.cross_entropy(logits, y.cuda())
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.3f}")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
