"""A block whose hidden units are cut over two ranks: torchrun --nproc-per-node=2 patient_05.py"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Sum(torch.autograd.Function):
    """Adds over ranks; the gradient goes through."""

    @staticmethod
    def forward(ctx, x):
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, grad):
        return grad


class Block(nn.Module):
    """(tokens, width) to the same. Each rank has its share of the hidden units, and the whole norm."""

    def __init__(self, width, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        y = self.norm(x)
        return x + Sum.apply(self.down(F.gelu(self.up(y))))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    model = Block(16, 64 // world)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    data = torch.Generator().manual_seed(0)
    for step in range(40):
        x = torch.randn(32, 16, generator=data)
        loss = (model(x) - x.roll(1, 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 19:
            print(f"rank {rank}: step {step} loss {loss:.3f} norm {model.norm.weight.norm():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
