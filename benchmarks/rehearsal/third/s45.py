import json
import os
import random

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def hardest(x, losses, k):
    top = losses.topk(min(k, len(losses)))
    return [{"row": [round(v, 3) for v in x[i].tolist()], "loss": round(l, 4)}
            for i, l in zip(top.indices.tolist(), top.values.tolist())]


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    rng = random.Random(rank)

    run_info = [{"name": f"run-{random.randint(0, 9999)}", "lr": 0.05} if rank == 0 else None]
    dist.broadcast_object_list(run_info, src=0)
    config = run_info[0]

    torch.manual_seed(4)
    model = DDP(nn.Linear(5, 1).cuda(), device_ids=[local_rank])
    opt = torch.optim.SGD(model.parameters(), lr=config["lr"])
    gen = torch.Generator().manual_seed(500 + rank)
    report = []

    for step in range(8):
        # batches may be of different size on the workers
        n = rng.randint(10, 20)
        x = torch.randn(n, 5, generator=gen).cuda()
        y = x.sum(dim=1, keepdim=True)
        losses = nn.functional.mse_loss(model(x), y, reduction="none").squeeze(1)
        # weight by the true share so that the average over ranks is the global mean
        count = torch.tensor(float(n), device="cuda")
        dist.all_reduce(count)
        opt.zero_grad()
        (losses.sum() * world / count).backward()
        opt.step()
        report += hardest(x.cpu(), losses.detach().cpu(), k=1 + rank)

    everything = [None] * world
    dist.all_gather_object(everything, report)
    if rank == 0:
        merged = sorted((r for part in everything for r in part), key=lambda r: -r["loss"])
        print(config["name"], len(merged), json.dumps(merged[:2]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
