import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def host_copy(model):
    return {k: v.detach().cpu().clone() for k, v in model.state_dict().items()}


def main():
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(10, 40), nn.SiLU(), nn.Linear(40, 1)).cuda()
    ddp = DDP(net, device_ids=[local_rank])
    opt = torch.optim.RMSprop(ddp.parameters(), lr=1e-3)
    ema = host_copy(net)
    decay = 0.95
    data = torch.Generator().manual_seed(rank)

    for step in range(6):
        x = torch.randn(32, 10, generator=data).cuda()
        y = x.pow(2).sum(1, keepdim=True)
        loss = nn.functional.smooth_l1_loss(ddp(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            for k, v in net.state_dict().items():
                ema[k].mul_(decay).add_(v, alpha=1 - decay)
        if rank == 0:
            print(f"{step}: {loss.item():.3f}")

    best = nn.Sequential(nn.Linear(10, 40), nn.SiLU(), nn.Linear(40, 1))
    best.load_state_dict(ema)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
