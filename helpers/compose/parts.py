"""How a rank computes its share of a batch: `run(inputs, targets, total)` adds to `.grad` and gives the loss it saw.

    Whole    all layers are here: one micro-batch after the other, gradients sent with the last
    Stages   a pipeline: this rank plays its row of the schedule
Both are told what a sum of losses is divided by, and neither knows of tensor parallelism, whose layers talk themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn

from helpers.parallel.pipeline import PipelineStage
from helpers.schedules import ORDERS, Action, Schedule
from helpers.specs import Plan

Loss = Callable[[Tensor, Tensor], Tensor]
Region = Callable[[], AbstractContextManager]  # autocast, or nothing


class Whole:
    """model: perhaps in DDP or Zero3. quiet: a region in which backward sends nothing; with ZeRO 2 and 3 none, since
    whole gradients would have to be kept until the last micro-batch, which is what these stages save."""

    def __init__(self, model: nn.Module, loss: Loss, region: Region, quiet: Region = nullcontext):
        self.model, self.loss, self.region, self.quiet = model, loss, region, quiet

    def run(self, inputs: Sequence[Tensor], targets: Sequence[Tensor], total: float) -> Tensor:
        losses = []
        for j, (x, y) in enumerate(zip(inputs, targets, strict=True)):
            with nullcontext() if j == len(inputs) - 1 else self.quiet():
                with self.region():
                    loss = self.loss(self.model(x), y) / total
                loss.backward()
            losses.append(loss.detach())
        return torch.stack(losses).sum()


class Stages(PipelineStage):
    """This rank's stages. dp_group: gradients are averaged over it after the row; None: ZeRO does it, for which the
    row is a region in which backward sends nothing (quiet): gradients are complete when tied weights have met."""

    def __init__(self, model: nn.Module, plan: Plan, loss: Loss, region: Region, group, dp_group, quiet: Region):
        super().__init__(model, group, schedule_of(plan), loss=loss, dp_group=dp_group)
        self.region, self.quiet = region, quiet

    def run(self, inputs: Sequence[Tensor], targets: Sequence[Tensor], total: float) -> Tensor:
        with self.quiet():
            loss = self.step_on(inputs, targets, total)
        return torch.zeros((), device=self.mail.device) if loss is None else loss

    def compute_forward(self, action: Action, given: Tensor | None) -> Tensor:
        with self.region():
            return super().compute_forward(action, given)


def schedule_of(plan: Plan) -> Schedule:
    """ValueError, from the schedule itself, where micro-batches do not fit it."""
    order, stages = ORDERS[plan.schedule], plan.pp * plan.num_chunks
    chunks = {"num_chunks": plan.num_chunks} if plan.num_chunks > 1 else {}
    return order(stages, plan.num_microbatches, **chunks)


def mean_over_copies(loss: Tensor, copies_and_stages: dist.ProcessGroup, num_copies: int) -> Tensor:
    """The global batch's loss, float64 on every rank: the last stage of each copy has a part of it, others have 0."""
    loss = loss.detach().double()
    dist.all_reduce(loss, group=copies_and_stages)
    return loss / num_copies
