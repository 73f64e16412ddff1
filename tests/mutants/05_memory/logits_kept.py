"""Whoever writes the loop and thinks that a chunk is gone when the next one comes: autograd keeps each."""

from torch.nn import functional as F

TASK = "05.chunked"
HINT = "logits_kept"


def chunked_cross_entropy(x, weight, targets, chunk):
    pieces = zip(x.split(chunk), targets.split(chunk), strict=True)
    loss = sum(F.cross_entropy(piece @ weight.T, target, reduction="sum") for piece, target in pieces)
    return loss / (targets != -100).sum()
