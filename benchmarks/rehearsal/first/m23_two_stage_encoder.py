import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

ROWS, MICRO, DIM = 22, 8, 16


def main():
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")

    gen = torch.Generator().manual_seed(8)
    data = torch.randn(ROWS, 10, generator=gen)
    label = (data.sum(1) > 0).long()
    torch.manual_seed(rank)

    if rank == 0:  # frozen encoder
        encoder = nn.Sequential(nn.Linear(10, DIM), nn.Tanh()).to(device).eval()
        for epoch in range(2):
            for x in data.split(MICRO):
                with torch.no_grad():
                    h = encoder(x.to(device))
                dist.send(h, dst=1)
    else:  # trains the head
        head = nn.Linear(DIM, 2).to(device)
        opt = torch.optim.SGD(head.parameters(), lr=0.2)
        buf = torch.empty(MICRO, DIM, device=device)
        for epoch in range(2):
            for y in label.split(MICRO):
                dist.recv(buf, src=0)
                h = buf[:len(y)].clone()
                loss = F.cross_entropy(head(h), y.to(device))
                opt.zero_grad()
                loss.backward()
                opt.step()
            print(f"epoch {epoch} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
