"""Provides MixtureOfExperts, a layer that takes the place of a transformer's feed-forward, and puts it into a GPT.

The parameters of the experts are two stacked tensors, so that a rank keeps a slice of them: up (E / N, h, f) and down
(E / N, f, h). The router and the shared expert, which every token passes, are replicated on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.parallel.experts.balance import auxiliary_loss, count_choices, update_bias
from helpers.parallel.experts.capacity import drop_over_capacity, expert_capacity
from helpers.parallel.experts.expert_parallel import grouped_matmul, route
from helpers.workloads.gpt import FIRST_STD, GPT


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig:
    """The shape of a layer of experts.

    hidden: h; expert_hidden: f. router: "softmax" or "sigmoid". num_shared: experts that every token passes.
    capacity_factor: None drops nothing. alpha: the factor of the auxiliary loss. bias_rate: how far the bias of the
    choice moves in each step. num_nodes, max_nodes: see `route`. Raises ValueError for what does not fit together.
    """

    hidden: int
    expert_hidden: int
    num_experts: int
    top_k: int
    router: str = "softmax"
    num_shared: int = 0
    capacity_factor: float | None = None
    alpha: float = 0.0
    bias_rate: float = 0.0
    num_nodes: int = 1
    max_nodes: int | None = None

    def __post_init__(self):
        if not 1 <= self.top_k <= self.num_experts:
            raise ValueError(
                f"ExpertsConfig(top_k={self.top_k}, num_experts={self.num_experts}): a token chooses at least one "
                "expert, and at most all of them"
            )
        if self.router not in ("softmax", "sigmoid"):
            raise ValueError(f"ExpertsConfig(router={self.router!r}): expected 'softmax' or 'sigmoid'")
        if self.num_experts % self.num_nodes:
            raise ValueError(
                f"ExpertsConfig(num_experts={self.num_experts}, num_nodes={self.num_nodes}): nodes have equally many "
                "experts, so choose a number of nodes that divides them"
            )
        if self.max_nodes is not None and not (
            1 <= self.max_nodes <= self.num_nodes
            and self.top_k % self.max_nodes == 0
            and self.top_k // self.max_nodes <= self.num_experts // self.num_nodes
        ):
            raise ValueError(
                f"ExpertsConfig(max_nodes={self.max_nodes}, num_nodes={self.num_nodes}, top_k={self.top_k}): a node is "
                "judged by its best top_k / max_nodes experts, so max_nodes divides top_k and is num_nodes at most"
            )


class Experts(nn.Module):
    """`num_experts` feed-forwards h to f to h, with a GELU between: rows (n, h) in the order of experts to (n, h)."""

    def __init__(self, num_experts: int, hidden: int, expert_hidden: int):
        super().__init__()
        self.up = nn.Parameter(FIRST_STD * torch.randn(num_experts, hidden, expert_hidden))
        self.down = nn.Parameter(FIRST_STD * torch.randn(num_experts, expert_hidden, hidden))

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """counts: how many rows are each expert's."""
        return grouped_matmul(F.gelu(grouped_matmul(rows, self.up, counts)), self.down, counts)


class MixtureOfExperts(nn.Module):
    """Sends each token to k of E experts and adds up what they return: (..., h) to (..., h).

    In one process it asks one expert after the other; `ExpertParallel` replaces `compute`, and `sum_counts`, which adds
    up the choices over the ranks with different tokens. After a forward, `balance_loss` is the auxiliary loss, which
    the training adds to its own, and `counts` (E) has the choices per expert since the last `update_bias`.
    """

    def __init__(self, config: ExpertsConfig):
        super().__init__()
        self.config = config
        self.router = nn.Linear(config.hidden, config.num_experts, bias=False)
        nn.init.normal_(self.router.weight, std=FIRST_STD)
        self.experts = Experts(config.num_experts, config.hidden, config.expert_hidden)
        self.shared = Experts(1, config.hidden, config.num_shared * config.expert_hidden) if config.num_shared else None
        self.register_buffer("bias", torch.zeros(config.num_experts))
        self.register_buffer("counts", torch.zeros(config.num_experts, dtype=torch.int64), persistent=False)
        self.balance_loss: Tensor | None = None
        self.compute = self.compute_in_one_process
        self.sum_counts: Callable[[Tensor], Tensor] = lambda counts: counts

    def forward(self, x: Tensor) -> Tensor:
        tokens, config = x.flatten(0, -2), self.config  # (T, h)
        bias = self.bias if config.bias_rate else None
        limits = dict(num_nodes=config.num_nodes, max_nodes=config.max_nodes)
        logits = self.router(tokens)
        # in float16 the gradient of a scaled auxiliary loss would overflow
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        experts, weights, scores = route(logits, config.top_k, config.router, bias, **limits)
        if config.capacity_factor is not None:
            capacity = expert_capacity(len(tokens), config.num_experts, config.top_k, config.capacity_factor)
            experts = drop_over_capacity(experts, config.num_experts, capacity)
        counts = self.sum_counts(count_choices(experts, config.num_experts))
        self.balance_loss = auxiliary_loss(scores, counts, config.alpha)
        self.counts += counts
        out = self.compute(tokens, experts, weights)
        if self.shared is not None:
            out = out + self.shared(tokens, torch.tensor([len(tokens)], device=x.device))
        return out.view_as(x)

    def compute_in_one_process(self, tokens: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """The definition: each expert computes the tokens that chose it, and the router's weights add them up."""
        out = torch.zeros_like(tokens)
        for expert in range(self.config.num_experts):
            token, choice = (experts == expert).nonzero(as_tuple=True)
            hidden = F.gelu(tokens[token] @ self.experts.up[expert])
            weighted = weights[token, choice, None] * (hidden @ self.experts.down[expert])
            out = out.index_add(0, token, weighted.to(out.dtype))  # autocast computes `hidden` in 16 bits
        return out

    def update_bias(self) -> None:
        """Move the bias by `bias_rate` towards balance, once per step after the optimizer, and count afresh."""
        update_bias(self.bias, self.counts, self.config.bias_rate)
        self.counts.zero_()


def with_experts(model: GPT, **config) -> GPT:
    """Replace the feed-forward of each block of the model by a MixtureOfExperts, in place; returns the model.

    config: the fields of ExpertsConfig but `hidden`. expert_hidden is 4 h if it is not given.
    """
    hidden = model.config.hidden
    for block in model.blocks:
        block.feed_forward = MixtureOfExperts(ExpertsConfig(hidden=hidden, **{"expert_hidden": 4 * hidden, **config}))
    return model


def expert_layers(model: nn.Module) -> list[MixtureOfExperts]:
    return [module for module in model.modules() if isinstance(module, MixtureOfExperts)]


def balance_loss(model: nn.Module) -> Tensor | float:
    """The sum of the auxiliary losses of the last forward over all layers of experts."""
    return sum(layer.balance_loss for layer in expert_layers(model))
