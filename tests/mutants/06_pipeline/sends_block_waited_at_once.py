"""Whoever posts a send and waits for it in the same line."""

import torch
import torch.distributed as dist
from torch.nn import functional as F

TASK = "06.stage"
HINT = "sends_block"


def run_stage(stage, actions, inputs, targets, shape):
    rank, p, m = dist.get_rank(), dist.get_world_size(), len(actions) // 2
    first, last = rank == 0, rank == p - 1
    held, total = {}, 0.0
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
                y = F.mse_loss(y, targets[j]) / m
                total += y.item()
            else:
                dist.isend(y.detach(), rank + 1).wait()
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
                dist.isend(x.grad, rank - 1).wait()
    return total if last else None
