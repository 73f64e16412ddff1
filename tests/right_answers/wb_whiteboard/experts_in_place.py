"""The softmax over all, divided again by what the chosen ones have; added up in place."""

import torch

TASK = "wb.experts"


def moe(x, logits, experts, k):
    weights, chosen = logits.softmax(-1).topk(k)
    weights = weights / weights.sum(-1, keepdim=True)
    out = torch.zeros_like(x)
    for e in range(len(experts)):
        hit = chosen == e
        rows = hit.any(1).nonzero()[:, 0]
        out.index_add_(0, rows, experts[e](x[rows]) * (weights * hit).sum(1)[rows, None])
    return out
