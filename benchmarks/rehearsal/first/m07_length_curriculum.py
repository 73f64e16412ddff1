# rehearse with: --nproc 2 --memory 100MB
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

B, H, DIM, VOCAB = 4, 4, 32, 50


class Attn(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.out = nn.Linear(DIM, VOCAB)

    def forward(self, ids):
        t = ids.shape[1]
        q, k, v = self.qkv(self.emb(ids)).view(B, t, 3, H, DIM // H).permute(2, 0, 3, 1, 4)
        score = (q @ k.transpose(-1, -2)) * (DIM // H) ** -0.5
        prob = score.softmax(-1)
        return self.out((prob @ v).transpose(1, 2).reshape(B, t, DIM))


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    device = torch.device("cuda", local_rank)
    torch.manual_seed(2)
    model = DDP(Attn().to(device), device_ids=[local_rank])
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(20 + dist.get_rank())
    for length in (128, 256, 512, 1024):
        ids = torch.randint(0, VOCAB, (B, length + 1), generator=gen).to(device)
        logits = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if dist.get_rank() == 0:
            print(f"T={length} loss {loss.item():.3f}")
        del logits, loss
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
