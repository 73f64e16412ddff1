"""A regression that keeps a diary of its losses: torchrun --nproc-per-node=3 patient_02.py"""

import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FOLDER = 0.25  # seconds that the cluster's shared folder takes per write; this machine has none


class Diary:
    def __init__(self):
        self.file, self.lines = tempfile.TemporaryFile("w"), []

    def note(self, line):
        self.lines.append(f"{line}\n")
        if len(self.lines) == 10:
            self.save()

    def save(self):
        self.file.writelines(self.lines)
        time.sleep(FOLDER)
        self.lines.clear()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    diary, seconds = Diary(), []
    torch.manual_seed(1 + rank)
    for step in range(30):
        began = time.perf_counter()
        x = torch.randn(32, 16)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == world - 1:
            diary.note(f"step {step} loss {loss.item():.3f}")
        seconds.append(time.perf_counter() - began)
    late = [step for step, took in enumerate(seconds) if took > FOLDER / 2]
    print(f"rank {rank}: steps of more than {FOLDER / 2} s: {late}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
