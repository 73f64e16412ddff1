import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def dataset(n=320):
    g = torch.Generator().manual_seed(42)
    x = torch.randn(n, 20, generator=g)
    y = (x[:, :10].sum(1) > x[:, 10:].sum(1)).long()
    return TensorDataset(x, y)


def main():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)

    data = dataset()
    sampler = DistributedSampler(data, shuffle=True, seed=12)
    loader = DataLoader(data, batch_size=20, sampler=sampler, pin_memory=True)

    torch.manual_seed(12)
    net = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Dropout(0.1), nn.Linear(40, 2))
    model = DDP(net.to(device), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)

    for epoch in range(4):
        loss_sum = torch.zeros((), device=device)
        for x, y in loader:
            x = x.to(device, non_blocking=True)
            y = y.to(device, non_blocking=True)
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            loss_sum += loss.detach()
        scheduler.step()
        dist.all_reduce(loss_sum)
        if rank == 0:
            mean = loss_sum.item() / (len(loader) * dist.get_world_size())
            print(f"epoch {epoch} loss {mean:.4f}")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
