"""Keeps the experts evenly busy: by an auxiliary loss, or by a bias on the choice that needs no loss.

A router that is left alone sends most tokens to a few experts, which learn faster and attract more. Both ways count the
tokens of the whole batch, so the counts are added up over the ranks that have different tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor


def count_choices(experts: Tensor, num_experts: int) -> Tensor:
    """How many of this rank's choices fall on each expert: (T, k) to (E), int64. A choice of -1 does not count."""
    return torch.bincount(experts[experts >= 0], minlength=num_experts)


def auxiliary_loss(scores: Tensor, counts: Tensor, alpha: float) -> Tensor:
    """alpha E sum_i f_i P_i: this rank's share of the loss that lowers the scores of the busiest experts most.

    f_i: the share of all choices that fall on expert i, from `count_choices`, without a gradient. P_i: the mean of the
    token's score of i, normalised to 1 over the experts. The mean over ranks with equally many tokens is the loss of
    the full batch. It is alpha at balance (Fedus et al. 2021, section 2.2), but some uneven loads give less.
    """
    share = counts.to(scores.dtype) / counts.sum()
    probability = (scores / scores.sum(-1, keepdim=True)).mean(0)
    return alpha * len(counts) * (share * probability).sum()


@torch.no_grad()
def update_bias(bias: Tensor, counts: Tensor, rate: float) -> None:
    """Lower the bias of experts with more choices than the mean by `rate`, and raise it where there are fewer.

    The change has one size, whatever the distance (Wang et al. 2024, "Auxiliary-Loss-Free Load Balancing", algorithm 1;
    DeepSeek-V3 uses 0.001). Once per step, after the optimizer.
    """
    mean = counts.sum() / len(counts)
    bias += rate * torch.sign(mean - counts)
