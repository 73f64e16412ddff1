import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

B, DIM = 16, 24


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(0)
    query = nn.Linear(10, DIM).to(device)
    key = nn.Linear(10, DIM).to(device)
    opt = torch.optim.SGD([*query.parameters(), *key.parameters()], lr=0.1)
    gen = torch.Generator().manual_seed(rank)
    target = torch.arange(B, device=device) + rank * B

    for step in range(4):
        x = torch.randn(B, 10, generator=gen).to(device)
        k = F.normalize(key(x + 0.1), dim=1).detach()
        bank = torch.empty(world * B, DIM, device=device)
        work = dist.all_gather_into_tensor(bank, k, async_op=True)
        q = F.normalize(query(x), dim=1)
        logits = q @ bank.t() / 0.1
        work.wait()
        loss = F.cross_entropy(logits, target)
        opt.zero_grad()
        loss.backward()
        for p in query.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        opt.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
