import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

VOCAB, T, B = 400, 24, 8


def next_tokens(step, rank, device):
    """Rank 0 reads the corpus, everybody gets the block (packed, half the bytes)."""
    block = torch.empty(B * dist.get_world_size(), T + 1, dtype=torch.int16, device=device)
    if rank == 0:
        gen = torch.Generator().manual_seed(step)
        block.copy_(torch.randint(0, VOCAB, block.shape, generator=gen))
    dist.broadcast(block, src=0)
    return block[rank * B:(rank + 1) * B].long()


def main():
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(0)
    lm = nn.Sequential(nn.Embedding(VOCAB, 32), nn.Linear(32, VOCAB)).to(device)
    ddp = DDP(lm, device_ids=[local_rank])
    opt = torch.optim.AdamW(ddp.parameters(), lr=3e-3)
    for step in range(4):
        ids = next_tokens(step, rank, device)
        logits = ddp(ids[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, VOCAB), ids[:, 1:].reshape(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            print(step, f"{loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
