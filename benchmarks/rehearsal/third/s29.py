import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def records(rank, count=8):
    out = []
    for i in range(count):
        g = torch.Generator().manual_seed(1000 * rank + i)
        rows = torch.randn(12, 6, generator=g).tolist()
        text = ";".join(",".join(f"{v:.4f}" for v in row) for row in rows)
        if rank == 1 and i == 3:
            text = text.replace(",", ",?", 1)
        out.append(text)
    return out


def parse(text):
    rows = [[float(v) for v in row.split(",")] for row in text.split(";")]
    x = torch.tensor(rows)
    return x, (x.sum(dim=1) > 0).long()


def evaluate(model, rank, device):
    seen = hits = 0
    for text in records(rank):
        try:
            x, y = parse(text)
            with torch.no_grad():
                good = (model.module(x.to(device)).argmax(dim=1).cpu() == y).sum()
            counts = torch.tensor([int(good), len(y)], device=device)
            dist.all_reduce(counts)
            hits += counts[0].item()
            seen += counts[1].item()
        except ValueError:
            print(f"rank {rank}: record could not be parsed")
    return hits / seen


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    rank = dist.get_rank()

    model = DDP(nn.Linear(6, 2).to(device), device_ids=[local_rank])
    opt = torch.optim.SGD(model.parameters(), lr=0.5)
    g = torch.Generator().manual_seed(5 + rank)
    for _ in range(10):
        x = torch.randn(32, 6, generator=g).to(device)
        y = (x.sum(dim=1) > 0).long()
        opt.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        opt.step()

    accuracy = evaluate(model, rank, device)
    if rank == 0:
        print(f"accuracy {accuracy:.3f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
