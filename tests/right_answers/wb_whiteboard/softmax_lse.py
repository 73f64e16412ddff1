"""The output is kept divided, and the log of the sum beside it."""

import torch

TASK = "wb.softmax"


def attend(q, k, v, block):
    q = q / q.shape[1] ** 0.5
    out, lse = q.new_zeros(q.shape), q.new_full((len(q), 1), -torch.inf)
    for start in range(0, len(k), block):
        scores = q @ k[start : start + block].T
        both = torch.logaddexp(lse, scores.logsumexp(1, keepdim=True))
        out = out * (lse - both).exp() + (scores - both).exp() @ v[start : start + block]
        lse = both
    return out
