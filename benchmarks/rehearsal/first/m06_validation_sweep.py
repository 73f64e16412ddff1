# rehearse with: --nproc 2 --memory 64MB
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

BATCH, DIM, HID = 1024, 256, 1024


def validate(model, gen, device, batches=40):
    model.eval()
    total = torch.zeros((), device=device)
    for _ in range(batches):
        x = torch.randn(BATCH, DIM, generator=gen).to(device)
        y = torch.randint(0, 10, (BATCH,), generator=gen).to(device)
        logits = model(x)
        total = total + F.cross_entropy(logits, y)
    model.train()
    return total.item() / batches


def main():
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(DIM, HID), nn.ReLU(), nn.Linear(HID, 10)).to(device)
    ddp = DDP(net, device_ids=[local_rank])
    opt = torch.optim.SGD(ddp.parameters(), lr=0.01)
    gen = torch.Generator().manual_seed(rank)
    for step in range(3):
        x = torch.randn(BATCH, DIM, generator=gen).to(device)
        y = torch.randint(0, 10, (BATCH,), generator=gen).to(device)
        loss = F.cross_entropy(ddp(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    val = validate(net, gen, device)
    if rank == 0:
        print("train", loss.item(), "val", val)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
