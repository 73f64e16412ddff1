import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

PATH = os.path.join(tempfile.gettempdir(), f"proto_{os.environ.get('MASTER_PORT', '0')}.pt")


def main():
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(0)
    model = nn.Linear(10, 6).to(device)
    protos = torch.randn(3, 6).to(device)
    if rank == 0:
        torch.save({"model": model.state_dict(), "protos": protos}, PATH)
    dist.barrier()

    ckpt = torch.load(PATH)
    model.load_state_dict(ckpt["model"])
    protos = ckpt["protos"]
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(rank)
    for step in range(3):
        x = torch.randn(12, 10, generator=gen).to(device)
        y = torch.randint(0, 3, (12,), generator=gen).to(device)
        dists = torch.cdist(model(x), protos)
        loss = F.cross_entropy(-dists, y)
        opt.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        opt.step()
        if rank == 0:
            print(step, loss.item())
    dist.barrier()
    if rank == 0:
        os.remove(PATH)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
