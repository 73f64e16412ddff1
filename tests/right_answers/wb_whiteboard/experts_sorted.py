"""As with an all-to-all: copies sorted by expert, computed in pieces, brought back into the order of the tokens."""

import torch

TASK = "wb.experts"


def moe(x, logits, experts, k):
    best, chosen = logits.topk(k)
    order = chosen.flatten().argsort(stable=True)
    counts = torch.bincount(chosen.flatten(), minlength=len(experts)).tolist()
    pieces = x[order // k].split(counts)
    done = torch.cat([expert(piece) for expert, piece in zip(experts, pieces, strict=True)])
    home = torch.empty_like(done).index_copy(0, order, done).view(len(x), k, -1)
    return (home * best.softmax(1)[..., None]).sum(1)
