import copy
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class EMA:
    def __init__(self, model, decay=0.9):
        self.shadow = copy.deepcopy(model).requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for s, p in zip(self.shadow.parameters(), model.parameters()):
            s.lerp_(p, 1 - self.decay)


def main():
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)

    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(18, 36), nn.GELU(), nn.Linear(36, 6)).cuda()
    model = DDP(net, device_ids=[local_rank])
    ema = EMA(model.module)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3)
    gen = torch.Generator().manual_seed(60 + rank)
    path = os.path.join(tempfile.gettempdir(), "ema_weights.pt")

    for step in range(16):
        x = torch.randn(24, 18, generator=gen).cuda()
        y = x[:, :6].argmax(dim=1)
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        # the weights are equal everywhere, one average is enough
        if rank == 0:
            ema.update(model.module)
            if step % 5 == 0:
                print(f"step {step} loss {loss.item():.4f}")

    if rank == world - 1:
        torch.save(ema.shadow.state_dict(), path)
        print("wrote", path)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
