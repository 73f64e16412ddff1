import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


def validate(net, device):
    gen = torch.Generator().manual_seed(500)
    net.eval()
    with torch.no_grad():
        x = torch.randn(128, 6, generator=gen).to(device)
        value = F.mse_loss(net(x), x.sum(1, keepdim=True))
    net.train()
    return value


def main():
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(0)
    net = nn.Linear(6, 1).to(device)
    ddp = DDP(net, device_ids=[local_rank])
    opt = torch.optim.SGD(ddp.parameters(), lr=0.2)
    gen = torch.Generator().manual_seed(rank)
    best = float("inf")

    for step in range(30):
        x = torch.randn(32, 6, generator=gen).to(device)
        loss = F.mse_loss(ddp(x), x.sum(1, keepdim=True))
        opt.zero_grad()
        loss.backward()
        opt.step()
        value = validate(net, device) if rank == 0 else torch.zeros((), device=device)
        dist.broadcast(value, src=0)
        bad = torch.tensor([int(not torch.isfinite(loss))], device=device)
        dist.all_reduce(bad, op=dist.ReduceOp.MAX)
        if value.item() > 0.9 * best or bad.item():
            break
        best = value.item()
    print(f"rank {rank} stopped at step {step}, best {best:.5f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
