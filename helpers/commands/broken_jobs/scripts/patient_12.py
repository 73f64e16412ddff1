"""A classifier on micro-batches, with its messages counted: torchrun --nproc-per-node=2 patient_12.py"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

MICRO = 4


def counted(sent, bucket):
    sent.append(bucket.buffer().nbytes)
    return allreduce_hook(dist.group.WORLD, bucket)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sent = []
    model.register_comm_hook(sent, counted)
    torch.manual_seed(1 + rank)
    for step in range(12):
        optimizer.zero_grad()
        sent.clear()
        for _ in range(MICRO):
            x = torch.randn(16, 64)
            loss = F.cross_entropy(model(x), x[:, :10].argmax(1)) / MICRO
            loss.backward()
        optimizer.step()
        if step % 4 == 3:
            print(f"rank {rank}: step {step} messages {len(sent)}, bytes {sum(sent)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
