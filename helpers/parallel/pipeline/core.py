"""A pipeline on one screen: each rank plays its row of the schedule; for each action take, compute, send.

    warm-up       0F0 0F1 0F2            forwards fill the pipeline
    steady state  0F3 0B0 0F4 0B1 …      one forward, one backward in turn
    cool-down     0B2 0B3 0B4            the backwards that remain
Nobody wrote these three phases down here: the row says what comes next, and a message that is late makes a rank wait.
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
    """What F leaves for B. output: its edge in the graph, since the tensor has been sent."""

    input: Tensor
    output: GradientEdge


class PipelineCore(nn.Module):
    """This rank's stages of a model that was cut in a chain. No weight may stand in two stages (see `PipelineStage`).

    loss(output, target): the mean over a micro-batch. Backward is computed whole, at B or at I; nothing is left for W.
    """

    def __init__(self, stages: Sequence[nn.Module], group: dist.ProcessGroup, schedule: Schedule, loss: Callable):
        super().__init__()
        self.schedule, self.group, self.rank, self.loss = (
            checked_schedule(schedule, group),
            group,
            dist.get_rank(group),
            loss,
        )
        self.chunks = nn.ModuleDict({str(s): stages[s] for s in schedule.stages_of(self.rank)})
        device = next((p.device for p in self.parameters()), computing_device(group))  # a stage may be without any
        self.mail = StageMailbox(schedule, group, device)
        self.last = schedule.num_stages - 1

    def step(self, inputs: Tensor, targets: Tensor) -> Tensor | None:
        """One batch, the same on every rank, in micro-batches: adds to `.grad`. The loss, on the last stage's rank."""
        m = self.schedule.num_microbatches
        return self.play(inputs.chunk(m), targets.chunk(m), total=m)

    def play(self, inputs: Sequence[Tensor], targets: Sequence[Tensor], total: float) -> Tensor | None:
        """This rank's row, with a batch in micro-batches. total: what their losses are divided by."""
        self.inputs, self.targets, self.total = inputs, targets, total
        self.live: dict[tuple[int, int], StoredForward] = {}  # (stage, micro-batch) from its F to its B
        self.losses: list[Tensor] = []
        self.mail.start()
        for action in self.schedule.actions[self.rank]:
            for single in action.singles:
                self.do(single)
        self.mail.finish()
        return torch.stack(self.losses).sum() if self.losses else None

    def do(self, action: Action) -> None:
        given = self.mail.take(action)  # a stage's input, or its output's gradient; None for what needs no message
        made = self.compute(action, given)
        self.mail.send(action, made)

    def compute(self, action: Action, given: Tensor | None) -> Tensor | None:
        if action.kind == FORWARD:
            return self.compute_forward(action, given)
        return self.compute_backward(action, given) if action.kind != WEIGHT else None

    def compute_forward(self, action: Action, given: Tensor | None) -> Tensor:
        stage, j = action.stage, action.microbatch
        x = self.inputs[j] if stage == 0 else given.requires_grad_()
        y = self.apply_stage(stage, x)
        if stage == self.last:
            y = self.loss(y, self.targets[j]) / self.total
            self.losses.append(y.detach())
        self.live[stage, j] = StoredForward(x, get_gradient_edge(y))
        return y.detach()

    def apply_stage(self, stage: int, x: Tensor) -> Tensor:
        return self.chunks[str(stage)](x)

    def compute_backward(self, action: Action, gradient: Tensor | None) -> Tensor | None:
        live = self.live.pop((action.stage, action.microbatch))
        torch.autograd.backward([live.output], None if gradient is None else [gradient])
        return live.input.grad if action.stage > 0 else None


def checked_schedule(schedule: Schedule, group: dist.ProcessGroup) -> Schedule:
    """The schedule itself. Raises ValueError where it would hang, or is for another number of ranks."""
    if schedule.num_ranks != dist.get_world_size(group):
        raise ValueError(
            f"schedule {schedule.name} is for {schedule.num_ranks} ranks, but the group has "
            f"{dist.get_world_size(group)}; num_stages must be the number of ranks times the chunks of each"
        )
    return validate(schedule)
