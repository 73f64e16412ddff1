"""The global batch: which rows this rank computes, in which micro-batches, and what the sum of losses is divided by.

Rows are cut over dp in order, a copy's rows into micro-batches. tp and pp ranks of a copy get the same rows. Every rank
knows the whole batch, so nobody asks how many tokens the others have: the divisor is counted here, once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch.distributed as dist
from torch import Tensor, nn

from helpers.parallel.tensor_parallel import vocab_parallel_cross_entropy
from helpers.parallel.tensor_parallel.linear import ColumnParallelLinear
from helpers.specs import Plan
from helpers.workloads import token_loss

IGNORED = -100  # a target that does not count, as in torch's cross entropy


class Share(NamedTuple):
    """What one copy computes. total: its sum of losses is divided by this; then the mean over copies is the loss."""

    inputs: Sequence[Tensor]
    targets: Sequence[Tensor]
    total: float


class SumLoss(NamedTuple):
    """sum(output, target): the losses of a micro-batch added up. count(target): how many they are."""

    sum: Callable[[Tensor, Tensor], Tensor]
    count: Callable[[Tensor], int]


def cut(inputs: Tensor, targets: Tensor, plan: Plan, copy: int, loss: SumLoss) -> Share:
    """The share of copy `copy` of a global batch. Raises ValueError where dp x micro-batches do not divide the rows."""
    parts = plan.dp * plan.num_microbatches
    if not len(inputs) or len(inputs) % parts or len(inputs) != len(targets):
        raise ValueError(
            f"step got {len(inputs)} rows and {len(targets)} targets; give as many of both, in a number that dp * "
            f"num_microbatches = {plan.dp} * {plan.num_microbatches} = {parts} divides"
        )
    count = loss.count(targets)
    if not count:
        raise ValueError(f"step got {len(targets)} rows without one target that counts: skip this batch on all ranks")
    own_inputs, own_targets = inputs.chunk(plan.dp)[copy], targets.chunk(plan.dp)[copy]
    m = plan.num_microbatches
    return Share(own_inputs.chunk(m), own_targets.chunk(m), count / plan.dp)


def sum_loss(loss: Callable[[Tensor, Tensor], Tensor], model: nn.Module, tp: dist.ProcessGroup) -> SumLoss:
    """A loss that gives a mean, as sum and count: means of unequal micro-batches do not average to the mean.

    token_loss: over tokens that count, on this rank's part of the vocabulary where it was cut. Another: over rows.
    Raises ValueError for another loss on logits of which each rank has a part.
    """
    if loss is token_loss:
        parallel = partial(vocab_parallel_cross_entropy, group=tp, reduction="sum")
        return SumLoss(
            parallel if _gives_a_part(model) else partial(token_loss, reduction="sum"),
            lambda targets: int((targets != IGNORED).sum()),
        )
    if _gives_a_part(model):
        raise ValueError(
            f"{getattr(loss, '__name__', loss)} would see only this rank's part of the vocabulary: use token_loss, "
            "which adds up over the parts, or tp=1"
        )
    return SumLoss(lambda output, target: loss(output, target) * len(target), len)


def _gives_a_part(model: nn.Module) -> bool:
    """Whether the model's logits are cut over the vocabulary."""
    return isinstance(getattr(model, "head", None), ColumnParallelLinear)
