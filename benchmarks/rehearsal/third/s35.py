import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import fully_shard

ACCUM = 3
UPDATES = 4


def build():
    torch.manual_seed(11)
    model = nn.Sequential()
    model.append(nn.Linear(14, 56))
    for _ in range(2):
        model.append(nn.Sequential(nn.ReLU(), nn.Linear(56, 56)))
    model.append(nn.Linear(56, 7))
    model.cuda()
    fully_shard(model[1])
    fully_shard(model[2])
    fully_shard(model)
    return model


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank = dist.get_rank()

    model = build()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    gen = torch.Generator().manual_seed(21 + rank)

    for update in range(UPDATES):
        shown = torch.zeros((), device="cuda")
        for micro in range(ACCUM):
            # only the last micro batch reduces, the others add up locally
            model.set_requires_gradient_sync(micro == ACCUM - 1)
            x = torch.randn(12, 14, generator=gen).cuda()
            y = x[:, :7].argmax(dim=1)
            loss = nn.functional.cross_entropy(model(x), y) / ACCUM
            loss.backward()
            shown += loss.detach()
        # sharded gradients are DTensors, the norm is the global one
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.5)
        opt.step()
        opt.zero_grad()
        dist.all_reduce(shown)
        if rank == 0:
            print(f"update {update} loss {shown.item() / dist.get_world_size():.4f}")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
