"""A ZeRO-3 step that was simulated, played by real ranks: our Zero3, real messages and values, modelled durations.

1. Slow motion: compute and link are slowed down alike until a step takes PLAYED seconds, so that the milliseconds which
   a small machine loses do not show. 2. Small messages: units are shrunk until the largest has UNIT bytes, and the
   link's bandwidth with them. 3. Each rank runs Zero3 on layers that wait for their modelled time; the wire holds
   messages back. 4. The recording is scaled back. What comes out is labelled "emulated", and is never speed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from helpers.observe.paced import paced
from helpers.observe.timeline import TimelineRecorder, record_timeline
from helpers.parallel.zero import Zero3
from helpers.predict.time.zero import Zero3Step, simulate_zero3_step
from helpers.ranks import Ranks
from helpers.records import Span, Timeline
from helpers.specs import Link

PLAYED = 1.5  # seconds that a step takes on the ranks
UNIT = 65_536  # bytes of the largest unit
MAX_RANKS = 8  # processes that one machine is asked to run


def emulate_zero3_step(
    step: Zero3Step, *, link: Link, world_size: int, prefetch: int = 1, limit: int = 2, keep_parameters: bool = False
) -> Timeline:
    """What `simulate_zero3_step` predicts with the same arguments, played by `Zero3` on `world_size` ranks of its own.

    An emulated Timeline in the seconds and bytes of the arguments; takes some seconds. ValueError for more than
    MAX_RANKS ranks, RankError when a rank fails.
    """
    if not 1 <= world_size <= MAX_RANKS:
        raise ValueError(f"{world_size} ranks would be as many processes on this machine: emulate 1 to {MAX_RANKS}")
    options = dict(prefetch=prefetch, limit=limit, keep_parameters=keep_parameters)
    predicted = simulate_zero3_step(step, link=link, world_size=world_size, **options)
    slowdown, shrink = PLAYED / predicted.duration, max(1.0, max(step.num_bytes) / UNIT)
    slow = Link(latency=link.latency * slowdown, bandwidth=link.bandwidth / slowdown / shrink)
    with Ranks(world_size, device="cpu", link=slow, quiet=True) as ranks:
        played = Timeline.merge(ranks.run(_played_step, step, slowdown, shrink, options)).shifted_to_zero()
    scaled = replace(played, spans=[_scaled_back(span, slowdown, shrink) for span in played.spans])
    spans = [span for rank in scaled.ranks for span in _as_simulated(scaled.for_rank(rank).spans, step)]
    return Timeline(spans=spans, source="emulated", title=predicted.title)


def _played_step(step: Zero3Step, slowdown: float, shrink: float, options: dict) -> Timeline:
    """On a rank: the first step, without waits, finds the order; the second one is kept."""
    layers = [_Layer(*numbers) for numbers in zip(step.num_bytes, step.forward, step.backward, strict=True)]
    for layer in layers:
        layer.shrink_to(layer.num_bytes / shrink)
    model = Zero3(nn.Sequential(*layers), **options)
    for factor in (0.0, slowdown):
        for layer in layers:
            layer.slowdown = factor
        dist.barrier()
        x = torch.ones((), requires_grad=True)
        with record_timeline(model.module, source="emulated") as recorder:
            x.register_hook(partial(_ends, recorder))
            model(x).backward()
    return recorder.timeline


def _ends(recorder: TimelineRecorder, gradient: Tensor) -> None:
    """The first layer's backward is over; else it would last until the last reduce-scatter has arrived."""
    recorder.mark(None)


class _Layer(nn.Module):
    """A unit: one parameter, and compute that takes as long as is modelled."""

    def __init__(self, num_bytes: int, forward_seconds: float, backward_seconds: float) -> None:
        super().__init__()
        self.num_bytes, self.seconds, self.slowdown = num_bytes, (forward_seconds, backward_seconds), 0.0

    def shrink_to(self, num_bytes: float) -> None:
        self.weight = nn.Parameter(torch.ones(max(1, round(num_bytes / 4))))

    def forward(self, x: Tensor) -> Tensor:
        return _PacedMean.apply(x, self.weight, *(seconds * self.slowdown for seconds in self.seconds))


class _PacedMean(torch.autograd.Function):
    """x times the mean of the weight: x is a scalar, () to ()."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, forward_seconds: float, backward_seconds: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.seconds = backward_seconds
        return paced(lambda: x * weight.mean(), forward_seconds)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple:
        x, weight = ctx.saved_tensors

        def gradients() -> tuple:
            return grad * weight.mean(), torch.full_like(weight, (grad * x / weight.numel()).item()), None, None

        return paced(gradients, ctx.seconds)


def _as_simulated(spans: Sequence[Span], step: Zero3Step) -> Iterator[Span]:
    """A rank's spans, told apart as the simulation does: no waits, neither of compute nor in front of the link."""
    free = 0.0
    for span in sorted(spans, key=lambda span: span.start):
        if span.lane == "communication":
            yield replace(span, start=min(max(span.start, free), span.end))
            free = span.end
        elif span.name.isdigit():  # a layer is named by its place in the model
            unit = int(span.name)
            took = (step.forward if span.kind == "forward" else step.backward)[unit]
            yield replace(span, name=step.names[unit], start=max(span.start, span.end - took))


def _scaled_back(span: Span, slowdown: float, shrink: float) -> Span:
    """In modelled seconds and bytes."""
    num_bytes = round(span.num_bytes * shrink)
    return replace(span, start=span.start / slowdown, end=span.end / slowdown, num_bytes=num_bytes)
