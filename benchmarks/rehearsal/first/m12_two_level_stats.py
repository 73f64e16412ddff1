import os

import torch
import torch.distributed as dist
import torch.nn as nn


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    half = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    node = half[rank // 2]
    leader = rank % 2 == 0

    torch.manual_seed(4)
    model = nn.Linear(8, 8).to(device)
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
        dist.broadcast(p.data, src=rank // 2 * 2, group=node)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(rank)

    for step in range(4):
        x = torch.randn(16, 8, generator=gen).to(device)
        loss = (model(x) - x).abs().mean()
        opt.zero_grad()
        loss.backward()
        near = loss.detach().clone()
        flat = torch.cat([p.grad.flatten() for p in model.parameters()])
        if leader:
            w1 = dist.all_reduce(near, group=node, async_op=True)
            w2 = dist.all_reduce(flat, async_op=True)
        else:
            w2 = dist.all_reduce(flat, async_op=True)
            w1 = dist.all_reduce(near, group=node, async_op=True)
        w1.wait()
        w2.wait()
        i = 0
        for p in model.parameters():
            p.grad.copy_(flat[i:i + p.numel()].view_as(p) / world)
            i += p.numel()
        opt.step()
        if leader:
            print(step, rank // 2, near.item() / 2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
