import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

N_TEST = 21


def predict_all(model, rank, world, device):
    gen = torch.Generator().manual_seed(99)
    test = torch.randn(N_TEST, 7, generator=gen)
    mine = test[rank::world].to(device)
    with torch.no_grad():
        pred = model(mine).softmax(-1)
    out = [torch.empty_like(pred) for _ in range(world)]
    dist.all_gather(out, pred)
    return torch.cat(out)


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(7, 14), nn.ReLU(), nn.Linear(14, 2)).to(device)
    ddp = DDP(net, device_ids=[local_rank])
    opt = torch.optim.Adam(ddp.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(rank)
    for step in range(5):
        x = torch.randn(32, 7, generator=gen).to(device)
        loss = F.cross_entropy(ddp(x), (x.mean(1) > 0).long())
        opt.zero_grad()
        loss.backward()
        opt.step()
    probs = predict_all(net, rank, world, device)
    if rank == 0:
        print("loss", loss.item(), "predictions", tuple(probs.shape), probs[:, 1].mean().item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
