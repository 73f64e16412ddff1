"""All gradients in one flat tensor."""

import torch
import torch.distributed as dist

TASK = "03.average"


def average_gradients(network):
    grads = [p.grad for p in network.parameters() if p.grad is not None]
    flat = torch.cat([g.reshape(-1) for g in grads])
    dist.all_reduce(flat, op=dist.ReduceOp.AVG)
    for g, piece in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
        g.copy_(piece.view_as(g))
