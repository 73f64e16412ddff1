"""Trains a small model with DDP: a complete script for GPUs that resumes after a crash. It also runs on CPUs.

torchrun --nproc-per-node=8 -m helpers.workloads.train_ddp checkpoint.pt 2
"""

import os
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main(checkpoint, epochs):
    local_rank = int(os.environ["LOCAL_RANK"])  # torchrun sets it
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)  # first of all, or every rank of the machine would start on GPU 0
    dist.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)
    torch.manual_seed(0)  # to repeat a run; DDP broadcasts the weights of rank 0 in any case
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
    torch.manual_seed(dist.get_rank())  # from here on, dropout draws another mask on each rank
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    start = resume(checkpoint, model, optimizer, device)
    ddp = DistributedDataParallel(model, device_ids=[local_rank] if on_gpu else None, gradient_as_bucket_view=True)
    sampler = DistributedSampler(examples())
    loader = DataLoader(sampler.dataset, batch_size=32, sampler=sampler, drop_last=True, pin_memory=on_gpu)
    for epoch in range(start, epochs):
        sampler.set_epoch(epoch)  # a new shuffle for each epoch, the same one on every rank
        loss = train_epoch(ddp, optimizer, loader, device)
        dist.all_reduce(loss)  # a sum over all ranks: every rank takes part, and only then rank 0 prints
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: mean loss {loss.item() / dist.get_world_size():.4f}", flush=True)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "next_epoch": epoch + 1}
            torch.save(state, f"{checkpoint}.new")
            os.replace(f"{checkpoint}.new", checkpoint)  # a crash while saving leaves the old file
    dist.destroy_process_group()


def train_epoch(ddp, optimizer, loader, device, accumulation=4):
    total = torch.zeros((), device=device)  # of the losses of this epoch, kept on the GPU
    for number, (x, y) in enumerate(loader):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        first = number - number % accumulation  # of the micro-batches of this step
        size = min(accumulation, len(loader) - first)  # the last step of an epoch may have fewer
        is_last = number == first + size - 1
        with nullcontext() if is_last else ddp.no_sync():
            loss = F.cross_entropy(ddp(x), y)
            (loss / size).backward()
        total += loss.detach()
        if is_last:
            nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)  # after the average, so all ranks find the same norm
            optimizer.step()
            optimizer.zero_grad()
    return total / len(loader)


def resume(checkpoint, model, optimizer, device):
    if not os.path.exists(checkpoint):  # on a file system that all machines share, so that all ranks agree
        return 0
    saved = torch.load(checkpoint, map_location=device)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return saved["next_epoch"]


def examples():
    generator = torch.Generator().manual_seed(0)  # the same 1,024 examples in every process
    x, weight = torch.randn(1024, 64, generator=generator), torch.randn(64, 10, generator=generator)
    return TensorDataset(x, (x @ weight).argmax(1))  # the class that a fixed random matrix gives


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
