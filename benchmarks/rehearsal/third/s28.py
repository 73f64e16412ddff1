import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

BATCHES_PER_RANK = [5, 7, 4]


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    rank = dist.get_rank()

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 1)).to(device)
    model = DDP(net, device_ids=[local_rank])
    opt = torch.optim.SGD(model.parameters(), lr=0.02)

    for epoch in range(2):
        gen = torch.Generator().manual_seed(100 * epoch + rank)
        totals = torch.zeros(2, device=device)
        # the shards are of unequal length, join() shadows the missing reductions
        with model.join():
            for _ in range(BATCHES_PER_RANK[rank]):
                x = torch.randn(16, 10, generator=gen).to(device)
                y = x[:, :4].sum(dim=1, keepdim=True)
                opt.zero_grad()
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                opt.step()
                totals[0] += loss.detach() * len(x)
                totals[1] += len(x)
        dist.all_reduce(totals)
        if rank == 0:
            print(f"epoch {epoch}: loss {(totals[0] / totals[1]).item():.4f} over {int(totals[1])} rows")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
