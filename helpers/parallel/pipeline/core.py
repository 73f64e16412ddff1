"""Runs any pipeline schedule: a rank goes through its row of actions, and for each it receives, computes and sends.

    warm-up       0F0 0F1 0F2            forwards fill the pipeline
    steady state  0F3 0B0 0F4 0B1 …      one forward and one backward in turn
    cool-down     0B2 0B3 0B4            the backwards that remain
0F3 is the forward of micro-batch 3 on stage 0. B is a full backward. Some schedules split it into I, the gradients of
the inputs, and W, those of the weights. The code below does not contain these three phases: the row says which
action comes next, and a rank waits where a message has not arrived. gpipe_and_1f1b.py has GPipe and 1F1B as loops, and
stage.py adds to the class below what training needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from helpers.devices import computing_device
from helpers.parallel.pipeline.mailbox import StageMailbox
from helpers.schedules import Action, Schedule, validate
from helpers.schedules.actions import FORWARD, WEIGHT


class StoredForward(NamedTuple):
    """What a forward stores for its backward."""

    input: Tensor
    output: GradientEdge  # the output's place in the autograd graph; the tensor itself was sent and can be freed


class PipelineCore(nn.Module):
    """This rank's stages of a model that is a chain of stages. No two stages may share a weight (see `PipelineStage`).

    It runs the row of actions that the schedule has for this rank. Its StageMailbox sends and receives the messages
    that belong to the actions.

    loss(output, target): the mean over a micro-batch. The full backward runs at action B (or I, where the schedule
    splits backward), so nothing is left for W.
    """

    def __init__(self, stages: Sequence[nn.Module], group: dist.ProcessGroup, schedule: Schedule, loss: Callable):
        super().__init__()
        self.schedule, self.loss = checked_schedule(schedule, group), loss
        self.group, self.rank = group, dist.get_rank(group)
        # this rank's stages: one, or several under an interleaved schedule
        self.chunks = nn.ModuleDict({str(s): stages[s] for s in schedule.stages_of(self.rank)})
        device = next((p.device for p in self.parameters()), computing_device(group))  # a stage may have no parameters
        self.mailbox = StageMailbox(schedule, group, device)
        self.last = schedule.num_stages - 1

    def step(self, inputs: Tensor, targets: Tensor) -> Tensor | None:
        """Run one batch, the same on every rank, in micro-batches; returns the loss on the rank of the last stage."""
        m = self.schedule.num_microbatches
        return self.run_row(inputs.chunk(m), targets.chunk(m), total=m)

    def run_row(self, inputs: Sequence[Tensor], targets: Sequence[Tensor], total: float) -> Tensor | None:
        """Run this rank's row on a batch in micro-batches, adding to `.grad`. total: the divisor of their losses."""
        self.inputs, self.targets, self.total = inputs, targets, total
        self.stored: dict[tuple[int, int], StoredForward] = {}  # (stage, micro-batch), from its forward to its backward
        self.losses: list[Tensor] = []
        self.mailbox.start()
        for action in self.schedule.actions[self.rank]:
            for single in action.singles:
                self.run_action(single)
        self.mailbox.finish()
        return torch.stack(self.losses).sum() if self.losses else None

    def run_action(self, action: Action) -> None:
        """Receive what the action needs, compute, and send what it gives; the mailbox knows both from the schedule."""
        received = self.mailbox.receive(action)  # a stage's input, its output's gradient, or None without a message
        result = self.compute(action, received)
        self.mailbox.send(action, result)

    def compute(self, action: Action, received: Tensor | None) -> Tensor | None:
        """Return what the action gives: the stage's output (the last stage's: the loss), or its input's gradient."""
        if action.kind == FORWARD:
            return self.compute_forward(action, received)
        return self.compute_backward(action, received) if action.kind != WEIGHT else None

    def compute_forward(self, action: Action, received: Tensor | None) -> Tensor:
        stage, j = action.stage, action.microbatch
        x = self.inputs[j] if stage == 0 else received.requires_grad_()
        y = self.apply_stage(stage, x)
        if stage == self.last:
            y = self.loss(y, self.targets[j]) / self.total
            self.losses.append(y.detach())
        self.stored[stage, j] = StoredForward(x, get_gradient_edge(y))
        return y.detach()

    def apply_stage(self, stage: int, x: Tensor) -> Tensor:
        return self.chunks[str(stage)](x)

    def compute_backward(self, action: Action, gradient: Tensor | None) -> Tensor | None:
        stored = self.stored.pop((action.stage, action.microbatch))
        torch.autograd.backward([stored.output], None if gradient is None else [gradient])
        return stored.input.grad if action.stage > 0 else None


def checked_schedule(schedule: Schedule, group: dist.ProcessGroup) -> Schedule:
    """Return the schedule. Raises ValueError where it would hang, or is for another number of ranks."""
    if schedule.num_ranks != dist.get_world_size(group):
        raise ValueError(
            f"schedule {schedule.name} is for {schedule.num_ranks} ranks, but the group has "
            f"{dist.get_world_size(group)}; num_stages must be the number of ranks times the chunks of each"
        )
    return validate(schedule)
