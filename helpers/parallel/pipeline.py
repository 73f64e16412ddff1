"""Pipeline parallelism: each rank holds some layers, and micro-batches pass through the ranks as a schedule says.

    partition   the model as stages (helpers.primitives.partition)
    schedule    who does what, in which order (helpers.schedules): gpipe, one_f_one_b, interleaved, zb_h1, …
    step        each rank plays its list:
        F  input from the stage before, forward, output to the next stage; the last one computes the loss
        B  gradient of the output from the next stage, backward, gradient of the input to the stage before
        I  the same, but gradients of large weights are put off
        W  those gradients

Legend: p = ranks, m = micro-batches, j = one of them, s = virtual stage. Forward and backward: one message of
activations, and one of their gradients, for each micro-batch and each cut between ranks. After the step: gradients of
tied weights between their owners; with data parallelism an all-reduce of this rank's gradients over its copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from helpers.primitives.clip import gradient_norm
from helpers.primitives.partition import partition
from helpers.primitives.recompute import checkpoint
from helpers.primitives.split_backward import Later, deferred_weights
from helpers.primitives.stage_mail import StageMail
from helpers.schedules import Action, Schedule, validate
from helpers.schedules.actions import FORWARD, INPUT, WEIGHT

Loss = Callable[[Tensor, Tensor], Tensor]


class PipelineStage(nn.Module):
    """This rank's part of a model. Every rank builds the same model, and keeps the layers of its stages.

    model: what `partition` can cut (a Sequential, a list of layers, the course's GPT, MLP and SmallResNet).
    loss(output, target): a scalar. Without `count`: the mean over a micro-batch; the step's loss is the mean of them.
    count(target): how many targets count; then `loss` gives their sum, and the step's loss is the sum over all
    micro-batches (and all copies of dp_group) divided by all that count: right where micro-batches have unequal
    numbers of tokens.
    costs: of each layer, to cut where stages take equally long. recompute: keep only each stage's input for backward.
    dp_group: the ranks that hold the same stage and get other data.
    Raises ValueError where the schedule would hang, does not fit the group, or has more stages than the model layers.
    """

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        group: dist.ProcessGroup | None,
        schedule: Schedule,
        *,
        loss: Loss,
        count: Callable[[Tensor], int | Tensor] | None = None,
        costs: Sequence[float] | None = None,
        recompute: bool = False,
        dp_group: dist.ProcessGroup | None = None,
    ):
        super().__init__()
        self.group, self.dp_group = group if group is not None else dist.group.WORLD, dp_group
        self.schedule, self.loss, self.count, self.recompute = validate(schedule), loss, count, recompute
        self.rank = dist.get_rank(self.group)
        if schedule.num_ranks != dist.get_world_size(self.group):
            raise ValueError(
                f"schedule {schedule.name} is for {schedule.num_ranks} ranks, but the group has "
                f"{dist.get_world_size(self.group)}; num_stages must be the number of ranks times the chunks of each"
            )
        stages = partition(model, schedule.num_stages, costs)
        self.chunks = nn.ModuleDict({str(s): stages[s] for s in schedule.stages_of(self.rank)})
        self.tied = _tied(stages, schedule)
        device = next((p.device for p in self.parameters()), torch.device("cpu"))
        self.mail = StageMail(schedule, self.group, device)
        self.last = schedule.num_stages - 1

    def step(self, inputs: Tensor | None = None, targets: Tensor | None = None) -> Tensor | None:
        """One batch, cut into micro-batches along dim 0: gradients are added to `.grad`.

        inputs are used on the rank of the first stage, targets on that of the last; elsewhere they may be None.
        Returns the loss of the batch on the rank of the last stage, None on the others.
        Raises ValueError where the micro-batches do not divide the batch.
        """
        self.inputs = self._cut(inputs, "inputs", stage=0)
        self.targets = self._cut(targets, "targets", stage=self.last)
        self.total = self._total()
        self.losses: list[Tensor] = []
        self.live: dict[tuple[int, int], tuple] = {}  # (s, j): input, output's edge, what is put off to W
        self.mail.start()
        row = [single for action in self.schedule.actions[self.rank] for single in action.singles]
        for action, following in zip(row, [*row[1:], None], strict=True):
            self._do(action, following)
        self.mail.finish()
        self.inputs = self.targets = None
        self._reduce_gradients()
        return torch.stack(self.losses).sum() if self.losses else None

    def forward(self, *args):
        raise RuntimeError("a PipelineStage holds only some of the layers: call step(inputs, targets) on every rank")

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale gradients so that the norm over all stages is at most max_norm; the norm before. Call on every rank.

        A tied weight counts once. Sends one scalar. Where dp_group holds copies, they are equal, so they do not count.
        """
        own = [p for p in self.parameters() if p.grad is not None]
        again = {id(p) for p, owners in self.tied if owners[0] != self.rank}
        norm = gradient_norm([p.grad for p in own if id(p) not in again], group=self.group)
        for parameter in own:
            parameter.grad.mul_(torch.clamp(max_norm / (norm + 1e-6), max=1.0))
        return norm

    # -- the four actions ------------------------------------------------------------------------------------------
    def _do(self, action: Action, following: Action | None) -> None:
        name = self._needs(action)
        given = self.mail.take(name) if name else None
        if following and (upcoming := self._needs(following)):
            self.mail.expect(upcoming)  # it may arrive while this rank computes
        if message := self._compute(action, given):
            self.mail.send(*message)

    def _compute(self, action: Action, given: Tensor | None) -> tuple[tuple[str, int, int], Tensor] | None:
        """Do it; the message to send, if there is one."""
        stage, kind, j = action.stage, action.kind, action.microbatch
        if kind == FORWARD:
            return self._forward(stage, j, given)
        if kind == WEIGHT:
            return self.live.pop((stage, j))[2].run()
        return self._backward(stage, j, given, split=kind == INPUT)

    def _forward(self, stage: int, j: int, given: Tensor | None):
        x = self.inputs[j] if stage == 0 else given.requires_grad_()
        later = Later() if self.schedule.splits_backward else None
        chunk = self.chunks[str(stage)]
        with deferred_weights(later) if later else nullcontext():
            y = checkpoint(chunk, x) if self.recompute else chunk(x)
        if not isinstance(y, Tensor):
            raise ValueError(
                f"stage {stage} returned a {type(y).__name__}, but a stage hands on one tensor: cut the model "
                "elsewhere, or put what the next stage needs into one tensor"
            )
        if stage == self.last:
            y = self.loss(y, self.targets[j]) / self.total
            self.losses.append(y.detach())
        self.live[stage, j] = x, get_gradient_edge(y), later  # the edge keeps the graph, not the output
        return None if stage == self.last else ((FORWARD, stage + 1, j), y.detach())

    def _backward(self, stage: int, j: int, gradient: Tensor | None, *, split: bool):
        x, edge, later = self.live.pop((stage, j))
        with deferred_weights(later) if later else nullcontext():  # for what is recomputed
            torch.autograd.backward([edge], None if gradient is None else [gradient])
        if split:
            self.live[stage, j] = None, None, later
        elif later:
            later.run()
        return (("B", stage - 1, j), x.grad) if stage > 0 else None

    def _needs(self, action: Action) -> tuple[str, int, int] | None:
        """The message that an action waits for."""
        stage, j = action.stage, action.microbatch
        if action.kind == FORWARD:
            return (FORWARD, stage, j) if stage > 0 else None
        return ("B", stage, j) if action.kind != WEIGHT and stage < self.last else None

    # -- before and after ------------------------------------------------------------------------------------------
    def _cut(self, batch: Tensor | None, what: str, stage: int) -> Sequence[Tensor] | None:
        m = self.schedule.num_microbatches
        if self.schedule.rank_of[stage] != self.rank:
            return None
        if batch is None or len(batch) % m or not len(batch):
            given = "None" if batch is None else f"a batch of {len(batch)}"
            raise ValueError(
                f"step got {given} as {what} on rank {self.rank}, which holds stage {stage} of {self.last + 1}: "
                f"give a batch that {m} micro-batches divide"
            )
        return batch.chunk(m)

    def _total(self) -> float:
        """What a micro-batch's loss is divided by, on the rank of the last stage."""
        if self.targets is None:
            return 1.0
        if self.count is None:
            return float(len(self.targets))
        total = torch.tensor(float(sum(int(self.count(t)) for t in self.targets)), device=self.targets[0].device)
        if self.dp_group is not None:
            dist.all_reduce(total, group=self.dp_group)
        return float(total)

    @torch.no_grad()
    def _reduce_gradients(self) -> None:
        """Tied weights: the sum over their owners. Data parallelism: the mean over copies (the sum, with `count`)."""
        for number, (parameter, owners) in enumerate(self.tied):
            if self.rank in owners:
                parameter.grad = self._sum_over(parameter, owners, number)
        if self.dp_group is not None:
            scale = 1 if self.count is not None else dist.get_world_size(self.dp_group)
            for parameter in self.parameters():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad, group=self.dp_group)
                    parameter.grad /= scale

    def _sum_over(self, parameter: nn.Parameter, owners: Sequence[int], number: int) -> Tensor:
        """The gradients of all owners, added in the order of ranks, so that the sums are equal to the bit."""
        own = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        others = [rank for rank in owners if rank != self.rank]
        parts = {self.rank: own, **{rank: torch.empty_like(own) for rank in others}}
        works = [dist.isend(own, group=self.group, group_dst=rank, tag=number) for rank in others]
        works += [dist.irecv(parts[rank], group=self.group, group_src=rank, tag=number) for rank in others]
        for work in works:
            work.wait()
        return torch.stack([parts[rank] for rank in owners]).sum(0)


def _tied(stages: Sequence[nn.Module], schedule: Schedule) -> list[tuple[nn.Parameter, list[int]]]:
    """Parameters that stages of several ranks use, with these ranks in order. The same list on every rank."""
    owners: dict[nn.Parameter, set[int]] = {}
    for stage, module in enumerate(stages):
        for parameter in module.parameters():
            owners.setdefault(parameter, set()).add(schedule.rank_of[stage])
    return [(parameter, sorted(ranks)) for parameter, ranks in owners.items() if len(ranks) > 1]
