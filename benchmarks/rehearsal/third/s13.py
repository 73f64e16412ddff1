import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CACHE = os.path.join(tempfile.gettempdir(), "prepared_rows.pt")


def get_dataset(rank):
    # the first worker builds the cache, the others wait for it
    if rank != 0:
        dist.barrier()
    else:
        g = torch.Generator().manual_seed(0)
        x = torch.rand(192, 10, generator=g)
        torch.save({"x": x, "y": (x.sum(dim=1) > 5).long()}, CACHE)
    blob = torch.load(CACHE)
    return TensorDataset(blob["x"], blob["y"])


def train(model, loader, sampler, device):
    opt = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            opt.step()
    return loss.item()


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    rank = dist.get_rank()

    dataset = get_dataset(rank)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    net = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 2))
    model = DDP(net.to(device), device_ids=[local_rank])
    final = train(model, loader, sampler, device)
    if rank == 0:
        print("final loss", final)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
