"""Whoever knows cross_entropy and does not see what it needs."""

from torch.nn import functional as F

TASK = "05.chunked"
HINT = "logits_at_once"


def chunked_cross_entropy(x, weight, targets, chunk):
    return F.cross_entropy(x @ weight.T, targets, ignore_index=-100)
