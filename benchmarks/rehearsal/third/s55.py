"""Three workers train, the fourth one evaluates what it is sent."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

TRAINERS = [0, 1, 2]
EVALUATOR = 3
EPOCHS = 3


def make_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 8, generator=g)
    return x, (x.sum(dim=1) > 0).long()


def ship_weights(net, group):
    for p in net.parameters():
        dist.broadcast(p.data, src=0, group=group)


def train(net, rank, device, train_group, link):
    x, y = make_data(240, 0)
    data = TensorDataset(x, y)
    sampler = DistributedSampler(data, num_replicas=len(TRAINERS), rank=rank)
    loader = DataLoader(data, batch_size=20, sampler=sampler)
    ddp = DDP(net, device_ids=[device.index], process_group=train_group)
    opt = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for bx, by in loader:
            opt.zero_grad()
            nn.functional.cross_entropy(ddp(bx.to(device)), by.to(device)).backward()
            opt.step()
        if rank == 0:
            ship_weights(net, link)


@torch.no_grad()
def evaluate(net, device, link):
    x, y = make_data(200, 1)
    x, y = x.to(device), y.to(device)
    for epoch in range(EPOCHS):
        ship_weights(net, link)
        acc = (net(x).argmax(1) == y).float().mean().item()
        print(f"epoch {epoch} accuracy {acc:.3f}")


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    rank = dist.get_rank()

    train_group = dist.new_group(TRAINERS)
    link = dist.new_group([0, EVALUATOR])
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).to(device)
    if rank in TRAINERS:
        train(net, rank, device, train_group, link)
    else:
        evaluate(net, device, link)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
