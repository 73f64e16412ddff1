import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def toy_images(n=96):
    g = torch.Generator().manual_seed(4)
    labels = torch.randint(0, 3, (n,), generator=g)
    images = torch.randn(n, 1, 8, 8, generator=g) + labels.view(-1, 1, 1, 1)
    return TensorDataset(images, labels)


def make_model():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )


def main():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    device = torch.device("cuda")

    torch.manual_seed(0)
    model = DDP(make_model().to(device))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    dataset = toy_images()
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=12, sampler=sampler)

    for epoch in range(2):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: {loss.item():.4f}")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
