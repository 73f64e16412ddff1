import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

PATH = os.path.join(tempfile.gettempdir(), "zero_last.pt")


def save(model, optimizer, epoch):
    if dist.get_rank() == 0:
        torch.save(
            {
                "epoch": epoch,
                "model": model.module.state_dict(),
                "optimizer": optimizer.state_dict(),
            },
            PATH,
        )
    dist.barrier()


def main():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)

    torch.manual_seed(0)
    layers = []
    for _ in range(4):
        layers += [nn.Linear(40, 40), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Linear(40, 10)).cuda()
    model = DDP(net, device_ids=[local_rank])
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.Adam, lr=1e-3
    )

    gen = torch.Generator().manual_seed(17 + rank)
    for epoch in range(2):
        for _ in range(6):
            x = torch.randn(16, 40, generator=gen).cuda()
            y = x[:, :10].argmax(dim=1)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        save(model, optimizer, epoch)
        if rank == 0:
            print(f"epoch {epoch} saved, loss {loss.item():.4f}")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
