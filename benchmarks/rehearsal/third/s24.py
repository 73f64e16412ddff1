import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

PRETRAINED = os.path.join(tempfile.gettempdir(), "pretrained_encoder.pt")


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 32), nn.Tanh())
        self.head = nn.Linear(32, 3)

    def forward(self, x):
        return self.head(self.encoder(x))


def export_pretrained():
    torch.manual_seed(99)
    torch.save(Classifier().state_dict(), PRETRAINED)


def main():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)

    if rank == 0:
        export_pretrained()
    dist.barrier()

    torch.manual_seed(0)
    model = DDP(Classifier().to(device), device_ids=[local_rank])
    if rank == 0:
        weights = torch.load(PRETRAINED, map_location=device)
        model.module.load_state_dict(weights)
        print("pretrained weights loaded")

    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(rank)
    for step in range(12):
        x = torch.randn(16, 16, generator=gen).to(device)
        y = x[:, :3].argmax(dim=1)
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 4 == 3:
            print(f"step {step} loss {loss.item():.4f}")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
