"""Refutes claims about mixtures of experts, by running this course's layer of experts.

Each function is named like its claim and returns numbers by name. `helpers/interview/myths.yaml` has the claims in
full, names these functions by their dotted path, and says which numbers refute a claim. Every function gets a pool of
four ranks, because all myths are called alike, but the second one does not use it; myths.py has the others.
"""

from __future__ import annotations

from copy import deepcopy

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.parallel.experts import (
    ExpertParallel,
    ExpertsConfig,
    MixtureOfExperts,
    drop_over_capacity,
    expert_capacity,
    route,
)
from helpers.parallel.experts.capacity import DROPPED
from helpers.ranks import Ranks

Numbers = dict[str, float]


def an_expert_on_one_rank_needs_no_division(ranks: Ranks) -> Numbers:
    """Claim: where no other rank has the same expert, its gradient is complete after backward.

    Four ranks with two of eight experts each, and a loss that is the mean over a rank's own tokens. "gradient" is the
    norm of rank 0's gradient of its experts over the right one, which comes from one process and the mean over all
    tokens. "adam" is how far a first step of Adam moves the weights, over the right distance.
    """

    def compare() -> Numbers:
        torch.manual_seed(0)
        alone = MixtureOfExperts(ExpertsConfig(hidden=8, expert_hidden=16, num_experts=8, top_k=2)).double()
        split, tokens = deepcopy(alone), torch.randn(dist.get_world_size(), 64, 8, dtype=torch.float64)
        ExpertParallel(split)(tokens[dist.get_rank()]).square().sum(-1).mean().backward()
        alone(tokens).square().sum(-1).mean().backward()
        wrong = split.experts.up.grad
        right = alone.experts.up.grad.chunk(dist.get_world_size())[dist.get_rank()]
        moved = moved_by_adam(wrong).norm() / moved_by_adam(right).norm()
        return {"gradient": (wrong.norm() / right.norm()).item(), "adam": moved.item()}

    return ranks.run(compare)[0]


def moved_by_adam(gradient: Tensor) -> Tensor:
    """What the first step of Adam adds to a parameter with this gradient."""
    parameter = torch.zeros_like(gradient, requires_grad=True)
    parameter.grad = gradient.clone()
    torch.optim.Adam([parameter], eps=0).step()
    return parameter.detach()


def a_capacity_factor_of_one_drops_nothing(ranks: Ranks) -> Numbers:
    """Claim: with a capacity factor of 1.0 nothing is dropped, because there are as many places as choices.

    The share of the choices that are dropped: 256 tokens, 8 experts, top 2. "even": all experts are equally likely.
    "uneven": each expert's score is 0.1 lower than that of the one before it.
    """

    def dropped(step: float) -> float:
        logits = torch.randn(256, 8, generator=torch.Generator().manual_seed(0)) - step * torch.arange(8)
        kept = drop_over_capacity(route(logits, 2)[0], 8, expert_capacity(256, 8, 2, factor=1.0))
        return (kept == DROPPED).double().mean().item()

    return {"even": dropped(0.0), "uneven": dropped(0.1)}
