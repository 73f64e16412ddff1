"""Every worker reads its own shard, as written by the export job."""
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

SHARD_ROWS = [160, 224]


def load_shard(index):
    rows = SHARD_ROWS[index]
    g = torch.Generator().manual_seed(100 + index)
    x = torch.randn(rows, 10, generator=g)
    y = x[:, :3].sum(dim=1, keepdim=True) + 0.1 * torch.randn(rows, 1, generator=g)
    return TensorDataset(x, y)


class Trainer:
    def __init__(self):
        self.rank = dist.get_rank()
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        self.loader = DataLoader(load_shard(self.rank), batch_size=32, shuffle=True)
        net = nn.Sequential(nn.Linear(10, 24), nn.Tanh(), nn.Linear(24, 1)).to(self.device)
        self.model = DistributedDataParallel(net, device_ids=[self.device.index])
        self.opt = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.loss_fn = nn.MSELoss()

    def run_epoch(self):
        total = torch.zeros(2, device=self.device)
        for x, y in self.loader:
            x, y = x.to(self.device), y.to(self.device)
            self.opt.zero_grad(set_to_none=True)
            loss = self.loss_fn(self.model(x), y)
            loss.backward()
            self.opt.step()
            total[0] += loss.detach() * len(x)
            total[1] += len(x)
        dist.all_reduce(total)
        return (total[0] / total[1]).item()

    def fit(self, epochs):
        for epoch in range(epochs):
            mean = self.run_epoch()
            if self.rank == 0:
                print(f"epoch {epoch} loss {mean:.4f}")


if __name__ == "__main__":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend="nccl")
    torch.manual_seed(0)
    Trainer().fit(3)
    dist.destroy_process_group()
