import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

VAL_ROWS = {0: 200, 1: 24}


def make(n, seed, shift=0.0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 9, generator=g)
    y = (x.sum(dim=1) + shift * torch.randn(n, generator=g) > 0).long()
    return x, y


class Evaluator:
    """Validation data stays on the machine where it was collected."""

    def __init__(self, rank, device):
        x, y = make(VAL_ROWS[rank], 300 + rank, shift=4.0 * rank)
        self.x, self.y = x.to(device), y.to(device)
        self.device = device

    @torch.no_grad()
    def __call__(self, net):
        net.eval()
        correct, total = 0, 0
        for i in range(0, len(self.x), 32):
            pred = net(self.x[i:i + 32]).argmax(dim=1)
            correct += (pred == self.y[i:i + 32]).sum().item()
            total += len(pred)
        net.train()
        acc = torch.tensor(correct / total, device=self.device)
        dist.all_reduce(acc)
        return acc.item() / dist.get_world_size()


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    rank = dist.get_rank()

    model = DDP(nn.Sequential(nn.Linear(9, 18), nn.ReLU(), nn.Linear(18, 2)).to(device), device_ids=[local_rank])
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    evaluator = Evaluator(rank, device)
    x, y = (t.to(device) for t in make(128, rank))

    for epoch in range(4):
        order = torch.randperm(128, generator=torch.Generator().manual_seed(epoch)).to(device)
        for idx in order.split(32):
            opt.zero_grad()
            nn.functional.cross_entropy(model(x[idx]), y[idx]).backward()
            opt.step()
        accuracy = evaluator(model.module)
        if rank == 0:
            print(f"epoch {epoch} validation accuracy {accuracy:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
