import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(40, 24), nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 40)).to(device)
    model = DDP(net, device_ids=[local_rank])
    opt = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=3e-3)
    gen = torch.Generator().manual_seed(rank)

    for step in range(4):
        ids = torch.randint(0, 40, (4, 13), generator=gen).to(device)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f} logits {logits.dtype}")

    opt.consolidate_state_dict(to=0)
    if rank == 0:
        print("optimizer state of", len(opt.state_dict()["state"]), "parameters")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
