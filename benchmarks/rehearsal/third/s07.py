import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

ACCUM = 4


def get_data():
    g = torch.Generator().manual_seed(31)
    x = torch.randn(256, 12, generator=g)
    return TensorDataset(x, x[:, :5].argmax(dim=1))


def train_epoch(model, loader, optimizer, loss_fn):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        x, y = x.cuda(), y.cuda()
        if (i + 1) % ACCUM != 0:
            with model.no_sync():
                loss = loss_fn(model(x), y) / ACCUM
                loss.backward()
        else:
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return loss.item()


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")

    data = get_data()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    assert len(loader) % ACCUM == 0
    net = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 5)).cuda()
    model = DDP(net, device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss_fn = nn.CrossEntropyLoss()

    for epoch in range(3):
        sampler.set_epoch(epoch)
        last = train_epoch(model, loader, optimizer, loss_fn)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} last loss {last:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
