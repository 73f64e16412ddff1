"""A regression over several epochs: torchrun --nproc-per-node=2 patient_07.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    x = torch.randn(64, 8)
    y = x.sum(1, keepdim=True)
    y[17] += 30  # as it was measured
    data = TensorDataset(x, y)
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, seed=1))
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(4):
        curve = []
        for x, y in loader:
            loss = (model(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mean = loss.detach().clone()
            dist.all_reduce(mean, op=dist.ReduceOp.AVG)
            curve.append(mean.item())
        print(f"rank {rank}: epoch {epoch} highest loss in step {curve.index(max(curve))}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
