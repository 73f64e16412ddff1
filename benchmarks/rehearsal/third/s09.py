import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def prepare():
    g = torch.Generator().manual_seed(2)
    x = torch.randn(256, 15, generator=g)
    w = torch.randn(15, 1, generator=g)
    return TensorDataset(x, x @ w)


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    data = prepare()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    model = DDP(nn.Linear(15, 1).to(device), device_ids=[local_rank])
    criterion = nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    for epoch in range(3):
        sampler.set_epoch(epoch)
        epoch_loss = torch.zeros(1, device=device)
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            # mean over all workers
            loss = criterion(model(x), y) / world_size
            loss.backward()
            optimizer.step()
            epoch_loss += loss.detach()
        dist.all_reduce(epoch_loss)
        if rank == 0:
            print(f"epoch {epoch}: {epoch_loss.item() / len(loader):.5f}")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
