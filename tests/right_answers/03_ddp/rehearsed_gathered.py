"""No messages at all: the edges of all ranks are gathered, and so are the results."""

import torch
import torch.distributed as dist

TASK = "03.rehearsed"


def rehearsed_step(model, x, y):
    rank, size = dist.get_rank(), dist.get_world_size()
    edges = torch.stack([x[0], x[-1]])
    all_edges = [torch.empty_like(edges) for _ in range(size)]
    dist.all_gather(all_edges, edges)
    before, after = all_edges[rank - 1][1], all_edges[(rank + 1) % size][0]
    padded = torch.cat([before[None], x, after[None]])
    errors = (model((padded[:-2] + padded[1:-1] + padded[2:]) / 3) - y) ** 2
    errors.mean().backward()
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= size
    for p, piece in zip(model.parameters(), flat.split([p.numel() for p in model.parameters()]), strict=True):
        p.grad = piece.view_as(p).clone()
    results = torch.stack([errors.detach().sum(), (errors > 9).sum().to(x.dtype)])
    dist.all_reduce(results)
    return results[0], bool(results[1] > 0)
