import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

PATH = os.path.join(tempfile.gettempdir(), f"c06_{os.environ.get('MASTER_PORT', '0')}.pt")


def train(ddp, opt, gen, device, steps):
    for _ in range(steps):
        x = torch.randn(16, 6, generator=gen).to(device)
        loss = F.mse_loss(ddp(x), x.cumsum(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


def main():
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    net = nn.Linear(6, 6).to(device)
    ddp = DDP(net, device_ids=[local_rank])
    opt = torch.optim.Adam(ddp.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(rank)
    before = train(ddp, opt, gen, device, 3)

    if rank == 0:
        weights = {k: v.cpu() for k, v in net.state_dict().items()}
        torch.save({"model": weights, "opt": opt.state_dict()}, PATH)
    dist.barrier(device_ids=[local_rank])
    ckpt = torch.load(PATH, map_location="cpu")
    net.load_state_dict(ckpt["model"])
    opt.load_state_dict(ckpt["opt"])
    after = train(ddp, opt, gen, device, 2)
    dist.barrier(device_ids=[local_rank])
    if rank == 0:
        os.remove(PATH)
        print(f"loss {before:.4f} -> {after:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
