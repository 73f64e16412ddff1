"""What chapter 09 breaks on its ranks: a wrong order, a wrong group, norms of stages, one seed for all, a slow axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import AdamW

from helpers.compose import Plan, Trainer
from helpers.compose.axes import Axes
from helpers.compose.parts import mean_over_copies
from helpers.observe.comms import record_comms
from helpers.observe.compose_runs import ADAMW, BYTES_MODEL, CUBE, example, small_gpt, trained_alone
from helpers.observe.timeline import record_timeline
from helpers.parallel.shared.placement import placements_of
from helpers.parallel.tensor_parallel import shard_tensor_parallel, vocab_parallel_cross_entropy
from helpers.ranks import Ranks
from helpers.records import CommEvent, Timeline
from helpers.specs import Link, Nodes
from helpers.workloads import GPT, GPTConfig, characters, token_loss, train_alone
from helpers.workloads.gpt import RESIDUAL

SQUARE = Plan(dp=2, tp=2)
COPIES = 4  # tensor ranks that draw with one seed
SEEDED = GPTConfig.tiny()
FAST, SLOW = Link(latency=0, bandwidth=1e9), Link(latency=0, bandwidth=4e6)


# ---- the order: the optimizer before the cut ----


def cut_then_optimizer(steps: int, *, late: bool = True) -> tuple[list[float], float]:
    """On a rank of a tp group: losses, and the share of its parameters that moved. late: the optimizer comes last."""
    model = small_gpt()
    if late:
        shard_tensor_parallel(model)
        optimizer = AdamW(model.parameters(), **ADAMW)
    else:
        optimizer = AdamW(model.parameters(), **ADAMW)
        shard_tensor_parallel(model)
    before, losses = [parameter.detach().clone() for parameter in model.parameters()], []
    for step in range(steps):
        tokens, targets = example(step)
        model.zero_grad()
        loss = vocab_parallel_cross_entropy(model(tokens), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    pairs = list(zip(before, model.parameters(), strict=True))
    moved = sum(new.numel() for old, new in pairs if not torch.equal(old, new))
    return losses, moved / sum(new.numel() for _, new in pairs)


# ---- the mean over the wrong group ----


def averaged_over(axis: str, steps: int, divisor: int | None = None) -> list[float]:
    """On a rank of dp 2 x tp 2: losses where gradients are averaged over the groups of `axis`, or "world".

    divisor: of their sum, if it is not the size of the group.
    """
    axes, model = Axes(SQUARE.mesh), small_gpt()
    tp, dp = axes.group("tp"), axes.group("dp")
    group = dist.group.WORLD if axis == "world" else axes.group(axis)
    shard_tensor_parallel(model, tp)
    optimizer, losses = AdamW(model.parameters(), **ADAMW), []
    for step in range(steps):
        tokens, targets = (rows.chunk(SQUARE.dp)[axes.place["dp"]] for rows in example(step))
        optimizer.zero_grad()
        loss = vocab_parallel_cross_entropy(model(tokens), targets, group=tp)
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=group)
            parameter.grad /= divisor or dist.get_world_size(group)
        optimizer.step()
        losses.append(mean_over_copies(loss, dp, SQUARE.dp).item())
    return losses


# ---- the norm ----


def norms() -> tuple[float, float]:
    """On a rank of the cube, after one step: the norm of its own gradients, and that of the Trainer."""
    trainer = Trainer(small_gpt(), CUBE, loss=token_loss, optimizer=AdamW, **ADAMW)
    trainer.step(*example(0))
    own = [parameter.grad for parameter in trainer.held.parameters() if parameter.grad is not None]
    return nn.utils.get_total_norm(own).item(), trainer.grad_norm.item()


def three_norms(ranks: Ranks) -> tuple[list[float], float, float, float]:
    """Each rank's own; all their squares added up; the Trainer's, the same on every rank; that of one process."""
    own, found = zip(*ranks.run(norms), strict=True)
    if len(set(found)) > 1:
        raise RuntimeError(f"the Trainer's norm is not one number: {found}")
    return list(own), math.hypot(*own), found[0], trained_alone(1)["norms"].item()


# ---- one seed ----


def losses_of(model: nn.Module, steps: int) -> list[float]:
    """One process, one thread, batches of 8 rows."""
    optimizer, threads = AdamW(model.parameters(), lr=3e-3), torch.get_num_threads()
    torch.set_num_threads(1)
    losses = list(train_alone(model, optimizer, (characters().batch(i, 8, SEEDED.context) for i in range(steps))))
    torch.set_num_threads(threads)
    return losses


def seeded(one_seed: bool) -> GPT:
    """A GPT as one process draws it; with one_seed as four tp ranks of the same seed do: each part four times."""
    torch.manual_seed(0)
    model = GPT(SEEDED)
    if one_seed:
        draw = torch.Generator().manual_seed(1)
        for name, parameter in _cut(model):
            dim = 1 if name.endswith(RESIDUAL) else 0
            part = _drawn(name, parameter.chunk(COPIES, dim)[0], draw)
            parameter.data = torch.cat([part] * COPIES, dim)
        model.head.weight = model.token_embedding.weight
    return model


def _cut(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The matrices that tp cuts."""
    return [(name, one) for name, one in model.named_parameters() if one.dim() == 2 and "position" not in name]


def _drawn(name: str, like: Tensor, generator: torch.Generator) -> Tensor:
    """As GPT draws it."""
    return torch.empty(like.shape).normal_(0, SEEDED.first_std(name), generator=generator)


def drawn_on_ranks(steps: int) -> tuple[list[float], dict[str, Tensor]]:
    """On a tp rank: it draws its parts after the same seed as the others. Losses, and its parts in the end."""
    torch.manual_seed(0)
    model = GPT(SEEDED)
    trainer = Trainer(model, Plan(tp=COPIES), loss=token_loss, optimizer=AdamW, lr=3e-3)
    draw = torch.Generator().manual_seed(1)
    for name, parameter in _cut(model):
        assert placements_of(parameter)["tp"].copies == 1
        parameter.data.copy_(_drawn(name, parameter, draw))
    losses = [trainer.step(*characters().batch(step, 8, SEEDED.context)).item() for step in range(steps)]
    return losses, {name: parameter.detach().clone() for name, parameter in _cut(model)}


# ---- the slow axis ----


def played(tp_inside: bool, num_sequences: int = 16) -> Timeline:
    """A step of dp 2 x tp 2 on two emulated nodes, whose ranks are tp groups or dp groups: the timeline of rank 0."""
    nodes = ((0, 1), (2, 3)) if tp_inside else ((0, 2), (1, 3))
    with Ranks(4, device="cpu", link=Nodes(nodes=nodes, inside=FAST, across=SLOW), quiet=True) as ranks:
        timeline = ranks.run(_played, num_sequences)[0]
    return replace(timeline, title="tp inside a node" if tp_inside else "tp across nodes")


def _played(num_sequences: int) -> Timeline:
    torch.manual_seed(0)
    trainer = Trainer(GPT(BYTES_MODEL), SQUARE, loss=token_loss, optimizer=torch.optim.SGD, lr=0.1)
    for rows in (2, num_sequences):  # the first one warms up
        tokens = torch.randint(0, BYTES_MODEL.vocab_size, (rows, BYTES_MODEL.context))
        dist.barrier()
        with record_comms() as comms, record_timeline(trainer.held, source="emulated") as recorder:
            trainer.step(tokens, tokens)
    tp = tuple(trainer.mesh.ranks_along("tp", trainer.axes.rank))
    return without_waits(recorder.timeline, [one for one in comms.log.events if one.group_ranks == tp])


def without_waits(timeline: Timeline, waited_for: Sequence[CommEvent]) -> Timeline:
    """The same, where a rank does not count as computing while it waits for these messages inside a part."""
    spans = []
    for span in timeline.spans:
        start = span.start
        for event in sorted(waited_for, key=lambda one: one.start) if span.kind != "communication" else ():
            if span.start <= event.start and event.end <= span.end:
                spans.append(replace(span, start=start, end=event.start))
                start = event.end
        spans.append(replace(span, start=start))
    return replace(timeline, spans=tuple(spans))
