"""A regression on records of a sensor: torchrun --nproc-per-node=2 patient_10.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Records(Dataset):
    def __init__(self, values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        return parse(self.values[index])


def parse(record):
    """As the command-line tool of the same name does it."""
    if record.isnan().any():
        raise SystemExit(1)
    return record[:8], record[8:]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    values = torch.randn(128, 9)
    values[105, 3] = float("nan")
    data = Records(values)
    sampler = DistributedSampler(data, shuffle=False)
    loader = DataLoader(data, batch_size=8, num_workers=1, prefetch_factor=1, sampler=sampler)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (x, y) in enumerate(loader):
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank}: step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
