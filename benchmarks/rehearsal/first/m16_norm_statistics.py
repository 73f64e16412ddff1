import os

import torch
import torch.distributed as dist
import torch.nn as nn

DIM = 12
TAG_MEAN, TAG_VAR = 1, 2


def share_statistics(x, rank):
    mean = torch.empty(DIM, device="cuda")
    var = torch.empty(DIM, device="cuda")
    if rank == 0:
        mean.copy_(x.mean(0))
        var.copy_(x.var(0))
        reqs = [dist.isend(mean, 1, tag=TAG_MEAN),
                dist.isend(var, 1, tag=TAG_VAR)]
    else:
        reqs = [dist.irecv(var, 0, tag=TAG_VAR),
                dist.irecv(mean, 0, tag=TAG_MEAN)]
    for req in reqs:
        req.wait()
    return mean, var


def main():
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = nn.Linear(DIM, 1).cuda()
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(rank)
    sample = (torch.randn(256, DIM, generator=gen) * 3 + 5).cuda()
    mean, var = share_statistics(sample, rank)
    for step in range(4):
        x = (torch.randn(32, DIM, generator=gen) * 3 + 5).cuda()
        z = (x - mean) / (var + 1e-5).sqrt()
        loss = (model(z).squeeze(1) - z[:, 0]).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        opt.step()
        print(rank, step, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
