"""Saved-tensor hooks keep a chunk's number in place of its logits."""

import torch
from torch.nn import functional as F

TASK = "05.chunked"


def recomputed(function, *args):
    numbers, again = iter(range(100)), []

    def unpack(number):
        if not again:
            with (
                torch.enable_grad(),
                torch.autograd.graph.saved_tensors_hooks(
                    lambda tensor: again.append(tensor.detach()), lambda nothing: nothing
                ),
            ):
                function(*(arg.detach().requires_grad_(arg.requires_grad) for arg in args))
        return again[number]

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: next(numbers), unpack):
        return function(*args)


def part_loss(piece, weight, target):
    return F.cross_entropy(piece @ weight.T, target, reduction="sum")


def chunked_cross_entropy(x, weight, targets, chunk):
    loss = 0
    for start in range(0, len(x), chunk):
        loss = loss + recomputed(part_loss, x[start : start + chunk], weight, targets[start : start + chunk])
    return loss / (targets != -100).sum()
