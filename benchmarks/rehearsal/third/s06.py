import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CACHE = os.path.join(tempfile.gettempdir(), "tokenised_corpus.pt")


def tokenise():
    g = torch.Generator().manual_seed(77)
    tokens = torch.randint(0, 40, (160, 9), generator=g)
    torch.save(tokens, CACHE)


def load(local_rank):
    # one process of each node writes, then the others of the node read
    if local_rank != 0:
        dist.barrier(device_ids=[local_rank])
    if local_rank == 0:
        tokenise()
        dist.barrier(device_ids=[local_rank])
    return TensorDataset(torch.load(CACHE))


class BigramLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(40, 24)
        self.out = nn.Linear(24, 40)

    def forward(self, tokens):
        return self.out(self.emb(tokens))


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    data = load(local_rank)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    model = DDP(BigramLM().cuda(), device_ids=[local_rank])
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)

    for epoch in range(2):
        sampler.set_epoch(epoch)
        for (tokens,) in loader:
            tokens = tokens.cuda()
            logits = model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {loss.item():.4f}")

    # everybody has read the cache by now
    dist.barrier(device_ids=[local_rank])
    if local_rank == 0:
        os.remove(CACHE)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
