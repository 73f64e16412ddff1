"""A DDP step that was simulated, played by real ranks: real processes, messages and values, modelled durations.

1. Slow motion: compute and link are slowed down alike until a step takes PLAYED seconds, so that the milliseconds which
   a small machine loses do not show. 2. Small messages: 1 / SHRINK of the bytes on a link of 1 / SHRINK of the
   bandwidth. 3. Each rank plays the pass: a layer waits for its modelled time, the wire holds messages back.
4. The recording is scaled back, in time and bytes. What comes out is labelled "emulated", and is never speed.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from helpers.observe.paced import wait_until
from helpers.observe.timeline import record_timeline, rename_like
from helpers.parallel.ddp import DistributedDataParallel, FlatDDP, NaiveDDP
from helpers.predict.time.data_parallel import BackwardPass, simulate_ddp_step
from helpers.ranks import Ranks
from helpers.records import Span, Timeline
from helpers.specs import Link

PLAYED = 1.0  # seconds that a step takes on the ranks
SHRINK = 64  # messages are this many times smaller, and so is the bandwidth
WARMUP = 2  # steps without waits before the one that is kept: DDP rebuilds its buckets after the first
MAX_RANKS = 8  # processes that one machine is asked to run
STRATEGIES = {
    "naive": NaiveDDP,
    "flat": FlatDDP,
    "bucketed": partial(DistributedDataParallel, overlap=False),
    "overlapped": DistributedDataParallel,
}


def emulate_ddp_step(
    backward: BackwardPass, *, link: Link, world_size: int, bucket_cap_mb: float = 25, first_bucket_mb: float = 1
) -> Timeline:
    """What `simulate_ddp_step` predicts with the same arguments, played by our DDP on `world_size` ranks of its own.

    An emulated Timeline in the seconds and bytes of the arguments; takes some seconds. A message's span begins when the
    link is free for it, as in the prediction. ValueError for more than MAX_RANKS ranks, RankError when a rank fails.
    """
    if not 1 <= world_size <= MAX_RANKS:
        raise ValueError(f"{world_size} ranks would be as many processes on this machine: emulate 1 to {MAX_RANKS}")
    caps = {"bucket_cap_mb": bucket_cap_mb, "first_bucket_mb": first_bucket_mb}
    predicted = simulate_ddp_step(backward, link=link, world_size=world_size, **caps)
    slowdown = PLAYED / predicted.duration
    slow = Link(latency=link.latency * slowdown, bandwidth=link.bandwidth / slowdown / SHRINK)
    caps = {name: cap / SHRINK for name, cap in caps.items()}
    with Ranks(world_size, device="cpu", link=slow, quiet=True) as ranks:
        played = Timeline.merge(ranks.run(_played_step, backward, slowdown, caps)).shifted_to_zero()
    scaled = replace(played, spans=tuple(_scaled_back(span, slowdown) for span in played.spans), title=predicted.title)
    return rename_like(scaled, predicted)


def emulate_ddp_strategies(
    backward: BackwardPass, *, link: Link, world_size: int = 4, slowdown: float = 2.0, **caps: float
) -> tuple[dict[str, Timeline], dict[str, Timeline]]:
    """One step under each of `STRATEGIES`: predicted, and played as above on ranks that all of them share.

    slowdown: of compute and link alike. caps: bucket_cap_mb and first_bucket_mb, in MiB.
    """
    slow = Link(latency=link.latency * slowdown, bandwidth=link.bandwidth / slowdown / SHRINK)
    small = {name: cap / SHRINK for name, cap in ({"bucket_cap_mb": 25.0, "first_bucket_mb": 1.0} | caps).items()}
    predicted, emulated = {}, {}
    with Ranks(world_size, device="cpu", link=slow, quiet=True) as ranks:
        for name in STRATEGIES:
            step = simulate_ddp_step(backward, link=link, world_size=world_size, strategy=name, **caps)
            played = Timeline.merge(ranks.run(_played_step, backward, slowdown, small, name)).shifted_to_zero()
            scaled = replace(played, spans=tuple(_scaled_back(span, slowdown) for span in played.spans))
            predicted[name], emulated[name] = step, rename_like(replace(scaled, title=step.title), step)
    return predicted, emulated


def _played_step(
    backward: BackwardPass, slowdown: float, caps: dict[str, float], strategy: str = "overlapped"
) -> Timeline:
    """On a rank: the last step is kept."""
    pace, wrap = _Pace(), STRATEGIES[strategy]
    sends_after = strategy in ("naive", "flat")  # these two know no buckets, and send when they are told
    model = wrap(nn.Sequential(*_layers(backward, pace)), **({} if sends_after else caps))
    for number in range(WARMUP + 1):
        dist.barrier()
        pace.start(slowdown if number == WARMUP else 0.0)
        with record_timeline(model, source="emulated") as recorder:
            model(torch.ones(())).backward()
            if sends_after:
                model.average_gradients()
    return recorder.timeline


def _layers(backward: BackwardPass, pace: _Pace) -> list[_Layer]:
    """A layer for each gradient, in the order of forward: the last gradient belongs to the first layer."""
    forward_to_backward = backward.forward_seconds / (sum(backward.seconds) or 1.0)
    pairs = zip(backward.num_bytes, backward.seconds, strict=True)
    return [_Layer(num_bytes, seconds * forward_to_backward, seconds, pace) for num_bytes, seconds in pairs][::-1]


class _Pace:
    """Deadlines on one clock, so that a late layer is followed by a shorter wait and nothing adds up."""

    def start(self, slowdown: float) -> None:
        self.slowdown, self.deadline = slowdown, time.perf_counter()

    def wait(self, seconds: float) -> None:
        """Return when `seconds` more of modelled time have passed."""
        self.deadline += seconds * self.slowdown
        wait_until(self.deadline)


class _Layer(nn.Module):
    """One parameter of as many bytes as its gradient, shrunk, with a forward and a backward of the given seconds."""

    def __init__(self, num_bytes: int, forward_seconds: float, backward_seconds: float, pace: _Pace) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(max(1, round(num_bytes / 4 / SHRINK))))
        self.seconds, self.pace = (forward_seconds, backward_seconds), pace

    def forward(self, x: Tensor) -> Tensor:
        return _PacedMean.apply(x, self.weight, self.seconds, self.pace)


class _PacedMean(torch.autograd.Function):
    """x times the mean of the weight: x is a scalar, () to ()."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, seconds: tuple[float, float], pace: _Pace) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.seconds, ctx.pace = seconds[1], pace
        pace.wait(seconds[0])
        return x * weight.mean()

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple:
        x, weight = ctx.saved_tensors
        gradient = torch.full_like(weight, (grad * x / weight.numel()).item())  # (P,)
        ctx.pace.wait(ctx.seconds)
        return grad * weight.mean(), gradient, None, None


def _scaled_back(span: Span, slowdown: float) -> Span:
    """In modelled seconds and bytes."""
    return replace(span, start=span.start / slowdown, end=span.end / slowdown, num_bytes=span.num_bytes * SHRINK)
