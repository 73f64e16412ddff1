import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def scanner_images(rank, n, seed):
    """Each hospital has its own brightness."""
    g = torch.Generator().manual_seed(seed + rank)
    labels = torch.randint(0, 2, (n,), generator=g)
    images = torch.randn(n, 1, 8, 8, generator=g) + 5.0 * rank
    images[labels == 1, :, :4] += 1.5
    return images, labels


def convnet():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AvgPool2d(4),
        nn.Flatten(),
        nn.Linear(32, 2),
    )


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    rank = dist.get_rank()

    net = convnet().to(device)
    # saves one broadcast in every forward
    model = DDP(net, device_ids=[local_rank], broadcast_buffers=False)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    images, labels = scanner_images(rank, 96, seed=10)

    for epoch in range(3):
        model.train()
        order = torch.randperm(96, generator=torch.Generator().manual_seed(epoch))
        for idx in order.split(8):
            loss = nn.functional.cross_entropy(model(images[idx].to(device)), labels[idx].to(device))
            opt.zero_grad()
            loss.backward()
            opt.step()

        model.eval()
        vi, vl = scanner_images(rank, 32, seed=70)
        with torch.no_grad():
            hits = (net(vi.to(device)).argmax(1).cpu() == vl).sum().to(device)
        dist.all_reduce(hits)
        if rank == 0:
            print(f"epoch {epoch} accuracy {hits.item() / (32 * dist.get_world_size()):.3f}")

    if rank == 0:
        torch.save(net.state_dict(), os.path.join(tempfile.gettempdir(), "scanner.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
