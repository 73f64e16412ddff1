"""Whoever cuts the loss into chunks, and multiplies before: the logits are all there."""

from torch.nn import functional as F

TASK = "05.chunked"
HINT = "logits_at_once"


def chunked_cross_entropy(x, weight, targets, chunk):
    logits = x @ weight.T
    parts = zip(logits.split(chunk), targets.split(chunk), strict=True)
    loss = sum(F.cross_entropy(part, target, reduction="sum") for part, target in parts)
    return loss / (targets != -100).sum()
