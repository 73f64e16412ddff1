"""Tags the words of sentences, the longest first: torchrun --nproc-per-node=2 patient_01.py"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PADDING = -100
LENGTHS = torch.tensor([12, 11, 10, 9, 4, 3, 2, 1])


def sentences(step, longest=12, words=20, tags=5):
    """Words and tags, both (8, 12); behind the end of a sentence the tag is PADDING."""
    x = torch.randint(words, (len(LENGTHS), longest), generator=torch.Generator().manual_seed(step))
    y = (3 * x + torch.arange(longest)) % tags
    y[torch.arange(longest) >= LENGTHS[:, None]] = PADDING
    return x, y


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 5)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(30):
        x, y = (part.chunk(world)[rank] for part in sentences(step))
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=PADDING)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shown = loss.detach().clone()
        dist.all_reduce(shown, op=dist.ReduceOp.AVG)
        if step % 10 == 9:
            print(f"rank {rank}: step {step} loss {shown:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
