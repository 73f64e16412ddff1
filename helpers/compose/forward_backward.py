"""Computes a rank's share of a global batch: which rows, in which micro-batches, and forward and backward over them.

    split_batch     the rows of one data-parallel replica, as micro-batches, and what their sum of losses is divided by
    FullModel       all layers are on this rank: it runs one micro-batch after the other, and sends gradients once
    PipelineModel   this rank has some stages of a pipeline and runs its row of the schedule

Rows are split over dp in order, and a replica's rows into micro-batches. The tp, pp and cp ranks of a replica get the
same rows, of which a cp rank then takes its tokens (context.py). Every rank sees the global batch, so each counts the
divisor itself, and no rank asks for the others' tokens. Both models have `run(inputs, targets, total)`, which adds to
`.grad` and returns the loss that this rank has seen. Neither knows about tensor and context parallelism, whose layers
communicate by themselves. The Trainer uses both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from helpers.parallel.pipeline import PipelineStage
from helpers.parallel.tensor_parallel import vocab_parallel_cross_entropy
from helpers.parallel.tensor_parallel.layers import ColumnParallelLinear
from helpers.schedules import ORDERS, Action, Schedule
from helpers.specs import Plan
from helpers.workloads import token_loss

IGNORED = -100  # a target that does not count, as in torch's cross entropy


class RankBatch(NamedTuple):
    """The micro-batches of one rank.

    total: a rank divides its sum of losses by this number, so that the mean over dp x cp ranks is the batch's loss.
    """

    inputs: Sequence[Tensor]
    targets: Sequence[Tensor]
    total: float


class SumLoss(NamedTuple):
    """A loss as two functions: sum(output, target) adds up the losses of a micro-batch, count(target) counts them."""

    sum: Callable[[Tensor, Tensor], Tensor]
    count: Callable[[Tensor], int]


def split_batch(inputs: Tensor, targets: Tensor, plan: Plan, replica: int, loss: SumLoss) -> RankBatch:
    """Return the rows of a global batch that replica number `replica` (its dp coordinate) computes.

    Raises ValueError where dp x micro-batches do not divide the rows, and where no target counts.
    """
    parts = plan.dp * plan.num_microbatches
    if not len(inputs) or len(inputs) % parts or len(inputs) != len(targets):
        raise ValueError(
            f"step got {len(inputs)} rows and {len(targets)} targets; give as many of both, in a number that dp * "
            f"num_microbatches = {plan.dp} * {plan.num_microbatches} = {parts} divides"
        )
    count = loss.count(targets)
    if not count:
        raise ValueError(f"step got {len(targets)} rows without one target that counts: skip this batch on all ranks")
    rows, row_targets = inputs.chunk(plan.dp)[replica], targets.chunk(plan.dp)[replica]
    total = count / (plan.dp * plan.cp)
    return RankBatch(rows.chunk(plan.num_microbatches), row_targets.chunk(plan.num_microbatches), total)


def sum_loss(loss: Callable[[Tensor, Tensor], Tensor], model: nn.Module, plan: Plan, tp: dist.ProcessGroup) -> SumLoss:
    """Turn a loss that returns a mean into a SumLoss, because means of unequal micro-batches do not average correctly.

    tp: the tensor-parallel group.

    `token_loss` counts tokens, and works on this rank's vocabulary shard where the vocabulary is sharded. Any other
    loss counts rows. Raises ValueError for another loss than `token_loss` on sharded logits or sharded sequences.
    """
    # a column-parallel head returns only this rank's vocabulary shard of the logits
    has_sharded_logits = isinstance(getattr(model, "head", None), ColumnParallelLinear)
    if loss is token_loss:
        parallel = partial(vocab_parallel_cross_entropy, group=tp, reduction="sum")
        summed = parallel if has_sharded_logits else partial(token_loss, reduction="sum")
        return SumLoss(summed, lambda targets: int((targets != IGNORED).sum()))
    if has_sharded_logits:
        raise ValueError(
            f"{getattr(loss, '__name__', loss)} would see only this rank's vocabulary shard: use token_loss, "
            "which adds up over the shards, or tp=1"
        )
    if plan.cp > 1:
        raise ValueError(
            f"{getattr(loss, '__name__', loss)} would average over the tokens of each cp rank alone, and cp={plan.cp} "
            f"ranks need not have equally many that count: use token_loss, or cp=1 and dp={plan.dp * plan.cp}"
        )
    return SumLoss(lambda output, target: loss(output, target) * len(target), len)


Loss = Callable[[Tensor, Tensor], Tensor]  # of the output and the targets
Region = Callable[[], AbstractContextManager]  # makes a context, such as autocast or no_sync, or one that does nothing


class FullModel:
    """Runs forward and backward of a model with all its layers, perhaps wrapped in DDP or Zero3.

    loss: returns the sum over a micro-batch. region: makes a context for forward, such as autocast.
    no_sync: makes a context in which backward sends nothing; it is used for all micro-batches but the last. ZeRO 2 and
    3 have none, because they would have to store full gradients until the last micro-batch.
    """

    def __init__(self, model: nn.Module, loss: Loss, region: Region, no_sync: Region = nullcontext):
        self.model, self.loss, self.region, self.no_sync = model, loss, region, no_sync

    def run(self, inputs: Sequence[Tensor], targets: Sequence[Tensor], total: float) -> Tensor:
        """Add gradients of the micro-batches to `.grad`; return the sum of their losses divided by `total`."""
        losses = []
        for j, (x, y) in enumerate(zip(inputs, targets, strict=True)):
            # the last micro-batch sends the gradients of all
            with nullcontext() if j == len(inputs) - 1 else self.no_sync():
                with self.region():
                    loss = self.loss(self.model(x), y) / total
                loss.backward()
            losses.append(loss.detach())
        return torch.stack(losses).sum()


class PipelineModel(PipelineStage):
    """Runs this rank's stages of a pipeline: a PipelineStage (parallel/pipeline/stage.py) with autocast and `no_sync`.

    group: the pipeline's ranks. region: makes a context for each forward, such as autocast.
    dp_group: gradients are averaged over it after the schedule's row. With None ZeRO averages them: `no_sync` then
    makes a context around the row, in which backward sends nothing, because gradients are complete only after the
    owners of tied weights have added theirs.
    """

    def __init__(self, model: nn.Module, plan: Plan, loss: Loss, region: Region, group, dp_group, no_sync: Region):
        super().__init__(model, group, schedule_of(plan), loss=loss, dp_group=dp_group)
        self.region, self.no_sync = region, no_sync

    def run(self, inputs: Sequence[Tensor], targets: Sequence[Tensor], total: float) -> Tensor:
        """Run the row; return the loss on the last stage's rank, and zero on the others."""
        with self.no_sync():
            loss = self.step_on(inputs, targets, total)
        return torch.zeros((), device=self.mailbox.device) if loss is None else loss

    def compute_forward(self, action: Action, received: Tensor | None) -> Tensor:
        with self.region():
            return super().compute_forward(action, received)


def schedule_of(plan: Plan) -> Schedule:
    """Make the plan's pipeline schedule. Raises ValueError where the number of micro-batches does not fit it."""
    # order: the function that makes a schedule of this name
    order, stages = ORDERS[plan.schedule], plan.pp * plan.num_chunks
    # only the interleaved schedule takes this argument
    chunks = {"num_chunks": plan.num_chunks} if plan.num_chunks > 1 else {}
    return order(stages, plan.num_microbatches, **chunks)


def mean_over_ranks(loss: Tensor, dp_cp_and_pp: dist.ProcessGroup, num_losses: int) -> Tensor:
    """Return the loss of the global batch in float64 on every rank.

    dp_cp_and_pp: the ranks of all replicas, shards of sequences, and stages. num_losses: dp * cp. The last stages have
    a loss each, and all other stages have 0, so one sum is enough.
    """
    loss = loss.detach().double()
    dist.all_reduce(loss, group=dp_cp_and_pp)
    return loss / num_losses
