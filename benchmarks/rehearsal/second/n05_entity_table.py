"""Knowledge-graph embeddings: the entity table is cut by rank, relations are replicated."""
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

ROWS, DIM, RELS, B = 8192, 1024, 8, 64


def save_table(weight, step):
    rank, world = dist.get_rank(), dist.get_world_size()
    parts = [torch.empty_like(weight) for _ in range(world)] if rank == 0 else None
    dist.gather(weight, parts, dst=0)
    if rank == 0:
        table = torch.cat(parts).cpu()
        path = os.path.join(tempfile.gettempdir(), f"entities_{os.getpid()}_{step}.pt")
        torch.save(table[:32].clone(), path)
        print("saved", tuple(table.shape), path)


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    dev = torch.device("cuda", local_rank)
    torch.manual_seed(0)
    rel = nn.Parameter(torch.randn(RELS, DIM, device=dev) * 0.02)
    torch.manual_seed(1 + rank)
    ents = nn.Embedding(ROWS, DIM, device=dev)
    opt = torch.optim.SGD([rel, ents.weight], lr=0.1)
    for step in range(4):
        h = torch.randint(ROWS, (B,), device=dev)
        t = torch.randint(ROWS, (B,), device=dev)
        r = torch.randint(RELS, (B,), device=dev)
        score = (ents(h) * rel[r] * ents(t)).sum(-1)
        neg = (ents(h) * rel[r] * ents(t.roll(1))).sum(-1)
        loss = F.softplus(neg - score).mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        dist.all_reduce(rel.grad)
        rel.grad /= world
        opt.step()
        if rank == 0:
            print(step, loss.item())
        if step % 3 == 2:
            save_table(ents.weight.detach(), step)
    dist.destroy_process_group()


main()
