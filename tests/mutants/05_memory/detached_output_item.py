"""Whoever adds up numbers, as in a log: right, and nothing to run backward from."""

from torch.nn import functional as F

TASK = "05.chunked"
HINT = "detached_output"


def chunked_cross_entropy(x, weight, targets, chunk):
    total = 0.0
    for piece, target in zip(x.split(chunk), targets.split(chunk), strict=True):
        total += F.cross_entropy(piece @ weight.T, target, reduction="sum").item()
    return total / (targets != -100).sum().item()
