import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def get_loader(batch_size):
    g = torch.Generator().manual_seed(8)
    x = torch.randn(160, 11, generator=g)
    y = (x[:, 3] * x[:, 4] > 0).float()
    data = TensorDataset(x, y)
    sampler = DistributedSampler(data, shuffle=True, drop_last=True)
    return DataLoader(data, batch_size=batch_size, sampler=sampler), sampler


def get_model(local_rank):
    net = nn.Sequential(nn.Linear(11, 22), nn.ReLU(), nn.Linear(22, 1))
    return DDP(net.cuda(), device_ids=[local_rank])


def fit(model, loader, sampler, epochs=2):
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_fn = nn.BCEWithLogitsLoss()
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            x, y = x.cuda(), y.cuda()
            opt.zero_grad()
            loss = loss_fn(model(x).squeeze(1), y)
            loss.backward()
            opt.step()
        if dist.get_rank() == 0:
            print("epoch", epoch, "loss", round(loss.item(), 4))


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    loader, sampler = get_loader(batch_size=16)

    dist.init_process_group(backend="nccl")
    model = get_model(local_rank)
    fit(model, loader, sampler)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
