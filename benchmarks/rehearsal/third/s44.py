import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

CKPT = os.path.join(tempfile.gettempdir(), "lstm_tagger.pt")


class Tagger(nn.Module):
    def __init__(self, vocab=50, dim=16, tags=4):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.LSTM(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, tags)

    def forward(self, tokens):
        h, _ = self.rnn(self.emb(tokens))
        return self.out(h)


def batches(seed, count, device):
    g = torch.Generator().manual_seed(seed)
    for _ in range(count):
        tokens = torch.randint(0, 50, (8, 12), generator=g)
        yield tokens.to(device), (tokens % 4).to(device)


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    rank = dist.get_rank()

    model = DDP(Tagger().to(device), device_ids=[local_rank])
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    for tokens, tags in batches(rank, 8, device):
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.reshape(-1, 4), tags.reshape(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()

    if rank == 0:
        torch.save(model.state_dict(), CKPT)
    dist.barrier()

    # fresh model for the final test
    best = Tagger().to(device)
    best.load_state_dict(torch.load(CKPT, map_location=device))
    best.eval()
    hits = torch.zeros(2, device=device)
    with torch.no_grad():
        for tokens, tags in batches(900 + rank, 4, device):
            hits[0] += (best(tokens).argmax(-1) == tags).sum()
            hits[1] += tags.numel()
    dist.all_reduce(hits)
    if rank == 0:
        print("test accuracy", (hits[0] / hits[1]).item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
