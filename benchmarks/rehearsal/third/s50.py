"""Sequences of unequal length: the loss is a mean over all tokens of all workers."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence

VOCAB, PAD = 30, 0


def batch(gen, size, longest):
    lengths = torch.randint(3, longest + 1, (size,), generator=gen).tolist()
    return pad_sequence(
        [torch.randint(1, VOCAB, (n,), generator=gen) for n in lengths],
        batch_first=True,
        padding_value=PAD,
    )


class Model(nn.Module):
    def __init__(self, dim=20):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim, padding_idx=PAD)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, VOCAB)

    def forward(self, tokens):
        h, _ = self.rnn(self.emb(tokens))
        return self.out(h)


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()

    model = DDP(Model().cuda(), device_ids=[local_rank])
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(rank)
    longest = 6 if rank == 0 else 15

    for step in range(10):
        tokens = batch(gen, 8, longest).cuda()
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        n_tokens = (targets != PAD).sum()
        dist.all_reduce(n_tokens)

        logits = model(inputs)
        loss_sum = nn.functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=PAD, reduction="sum"
        )
        # DDP divides by the number of workers, which is undone here
        loss = loss_sum * world / n_tokens
        opt.zero_grad()
        loss.backward()
        opt.step()

        shown = loss_sum.detach().clone()
        dist.all_reduce(shown)
        if rank == 0:
            print(f"step {step}: loss per token {(shown / n_tokens).item():.4f}")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
