import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

TEXT = [
    "the quick brown fox jumps over the lazy dog and the dog sleeps",
    "a small model reads a small text and a small loss goes down",
]


def main():
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")

    words = TEXT[rank % len(TEXT)].split()
    vocab = {w: i for i, w in enumerate(sorted(set(words)))}
    ids = torch.tensor([vocab[w] for w in words])

    torch.manual_seed(0)
    lm = nn.Sequential(nn.Embedding(len(vocab), 16), nn.Linear(16, len(vocab))).to(device)
    model = DDP(lm, device_ids=[local_rank])
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)

    for step in range(6):
        x, y = ids[:-1].to(device), ids[1:].to(device)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f} of {len(vocab)} words")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
