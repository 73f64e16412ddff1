"""Drops the choices that are more than an expert's capacity, as GShard and Switch Transformers do.

With a capacity, every expert has the same number of rows, so buffers and matrix products have fixed shapes; the price
is that some tokens miss an expert. Without one (dropless, MegaBlocks 2022), nothing is lost and the busiest expert
decides how long the layer takes.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import torch
import torch.nn.functional as F
from torch import Tensor

DROPPED = -1  # the number of the expert of a choice that goes nowhere


def expert_capacity(tokens: int, num_experts: int, k: int, factor: float) -> int:
    """Rows that an expert takes from `tokens` tokens: factor times the mean, rounded up (Fedus et al. 2021, eq. 3)."""
    # Fractions, because in floats 50 * 1.1 is a little above 55 and would be rounded up to 56.
    return ceil(Fraction(str(factor)) * tokens * k / num_experts)


def drop_over_capacity(experts: Tensor, num_experts: int, capacity: int) -> Tensor:
    """Return the choices (T, k) with DROPPED wherever the expert has `capacity` rows already.

    First choices of all tokens come before second ones, and earlier tokens before later ones (GShard, algorithm 1). The
    weights of a token's other experts stay as they are.
    """
    in_order = experts.T.flatten()  # (k * T): all first choices, then all second ones
    is_chosen = F.one_hot(in_order, num_experts)  # (k * T, E)
    place = (is_chosen.cumsum(0) * is_chosen).sum(1)  # the place of each choice in the queue of its expert, from 1
    kept = torch.where(place <= capacity, in_order, DROPPED)
    return kept.view(experts.shape[1], -1).T.contiguous()
