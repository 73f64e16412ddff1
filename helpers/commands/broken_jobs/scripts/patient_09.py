"""A classifier that shows which units it trains: torchrun --nproc-per-node=3 patient_09.py"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 4))
    off = []
    layers[2].register_forward_hook(lambda layer, given, out: off.append((out[0] == 0).nonzero().flatten().tolist()))
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(100 + rank)
    for step in range(12):
        x = torch.randn(32, 16, generator=data)
        loss = F.cross_entropy(model(x), x[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 4 == 3:
            print(f"rank {rank}: step {step} loss {loss.item():.3f} units off {off[-1]}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
