"""Whoever adds up losses and gradients."""

import torch
import torch.distributed as dist
from torch.nn import functional as F

TASK = "06.stage"
HINT = "not_divided"


def run_stage(stage, actions, inputs, targets, shape):
    rank, p = dist.get_rank(), dist.get_world_size()
    first, last = rank == 0, rank == p - 1
    held, works, total = {}, [], 0.0
    for action in actions:
        kind = "F" if "F" in action else "B"
        j = int(action.partition(kind)[2])
        if kind == "F":
            if first:
                x = inputs[j]
            else:
                x = torch.empty(shape, dtype=torch.float64)
                dist.recv(x, rank - 1)
                x.requires_grad_()
            y = stage(x)
            if last:
                y = F.mse_loss(y, targets[j])
                total += y.item()
            else:
                works.append(dist.isend(y.detach(), rank + 1))
            held[j] = x, y
        else:
            x, y = held.pop(j)
            if last:
                y.backward()
            else:
                gradient = torch.empty(shape, dtype=torch.float64)
                dist.recv(gradient, rank + 1)
                y.backward(gradient)
            if not first:
                works.append(dist.isend(x.grad, rank - 1))
    for work in works:
        work.wait()
    return total if last else None
