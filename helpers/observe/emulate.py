"""Runs a simulated training step on real ranks in slow motion, so that a prediction can be compared with a run.

Processes, messages and values are real, durations are modelled: 1. Compute and link are slowed down alike, until the
milliseconds that a small machine loses do not show. 2. Messages are shrunk, and the link's bandwidth with them, so that
a small machine can carry them. 3. Each rank runs the strategy on paced layers (paced.py), which sleep until their
modelled time is over, and messages are held back as long as the link would take for them. 4. The recording is scaled
back to modelled seconds and bytes, and labelled "emulated". It says nothing about speed.

The prediction and the recording are Timelines: lists of spans, each with a rank, a start and an end. A link is a
latency in seconds and a bandwidth in bytes per second. The chapters on DDP, pipelines, ZeRO and tensor parallelism call
it, and so do benchmarks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from helpers.observe.paced import ALWAYS_CATCH_UP, Pace, PacedMean
from helpers.observe.timeline import TimelineRecorder, record_timeline, rename_like
from helpers.parallel.ddp import DistributedDataParallel, FlatDDP, NaiveDDP
from helpers.parallel.pipeline import PipelineStage
from helpers.parallel.zero import Zero3
from helpers.predict.time.data_parallel import BackwardPass, simulate_ddp_step
from helpers.predict.time.pipeline import KINDS, Seconds, seconds_by_kind, simulate
from helpers.predict.time.zero import Zero3Step, simulate_zero3_step
from helpers.ranks import Ranks
from helpers.ranks.live import keep_current
from helpers.records import Span, Timeline
from helpers.schedules import Action, Schedule
from helpers.specs import Link

MAX_RANKS = 8  # processes that one machine is asked to run


def emulate(
    on_rank: Callable[..., Timeline],
    *arguments: object,
    predicted: Timeline,
    link: Link,
    world_size: int,
    seconds: float,
    shrink: float = 1.0,
) -> Timeline:
    """Run `on_rank(slowdown, *arguments)` on new ranks, and scale what it records back to modelled seconds and bytes.

    predicted: the same step, simulated. seconds: how long that step takes in slow motion. shrink: by which factor
    `on_rank` makes messages smaller. The Timeline has the prediction's title and starts at 0. RankError when a rank
    fails.
    """
    slowdown = seconds / predicted.duration
    # keep_current: a notebook's cells run on the Ranks made last, which after this block are the notebook's own again.
    with keep_current(), slow_ranks(world_size, link, slowdown, shrink) as ranks:
        return scaled_back(ranks.run(on_rank, slowdown, *arguments), slowdown, shrink, title=predicted.title)


def check_world_size(world_size: int) -> None:
    """Raises ValueError for more than MAX_RANKS ranks, and for none."""
    if not 1 <= world_size <= MAX_RANKS:
        raise ValueError(f"{world_size} ranks would be as many processes on this machine: emulate 1 to {MAX_RANKS}")


def slow_ranks(world_size: int, link: Link, slowdown: float, shrink: float = 1.0) -> Ranks:
    """Ranks whose link is slower by `slowdown`, and narrower by `shrink`, by which their messages are smaller."""
    slow = Link(latency=link.latency * slowdown, bandwidth=link.bandwidth / slowdown / shrink)
    return Ranks(world_size, device="cpu", link=slow, quiet=True)


def scaled_back(timelines: Sequence[Timeline], slowdown: float, shrink: float = 1.0, *, title: str = "") -> Timeline:
    """One Timeline of all ranks, which starts at 0, in modelled seconds and bytes."""
    merged = Timeline.merge(timelines).shifted_to_zero()
    spans = tuple(
        replace(span, start=span.start / slowdown, end=span.end / slowdown, num_bytes=round(span.num_bytes * shrink))
        for span in merged.spans
    )
    return replace(merged, spans=spans, title=title)


# ---- DDP ----

DDP_SECONDS = 1.0  # how long a step of DDP takes in slow motion
DDP_SHRINK = 64  # by which factor messages are smaller
WARMUP_STEPS = 2  # steps without waits before the one that is recorded: DDP rebuilds its buckets after the first
STRATEGIES = {
    "naive": NaiveDDP,
    "flat": FlatDDP,
    "bucketed": partial(DistributedDataParallel, overlap=False),
    "overlapped": DistributedDataParallel,
}


def emulate_ddp_step(
    backward: BackwardPass, *, link: Link, world_size: int, bucket_cap_mb: float = 25, first_bucket_mb: float = 1
) -> Timeline:
    """What `simulate_ddp_step` predicts with the same arguments, run by our DDP. Takes some seconds.

    backward: the gradients in the order in which backward makes them, each with its bytes and the seconds before it. A
    message's span begins when the link is free for it, as in the prediction. ValueError for over MAX_RANKS ranks.
    """
    check_world_size(world_size)
    caps = {"bucket_cap_mb": bucket_cap_mb, "first_bucket_mb": first_bucket_mb}
    where = dict(link=link, world_size=world_size)
    predicted = simulate_ddp_step(backward, **where, **caps)
    options = dict(predicted=predicted, **where, seconds=DDP_SECONDS, shrink=DDP_SHRINK)
    return rename_like(emulate(_ddp_step, backward, _shrunk(caps), **options), predicted)


def emulate_ddp_strategies(
    backward: BackwardPass, *, link: Link, world_size: int = 4, slowdown: float = 2.0, **caps: float
) -> tuple[dict[str, Timeline], dict[str, Timeline]]:
    """One step under each of `STRATEGIES`: the predictions and the emulations, by name of the strategy.

    All run on the same ranks. slowdown: the factor by which compute and link are slower. caps: bucket_cap_mb and
    first_bucket_mb, in MiB.
    """
    predicted, emulated = {}, {}
    with slow_ranks(world_size, link, slowdown, DDP_SHRINK) as ranks:
        for name in STRATEGIES:
            step = simulate_ddp_step(backward, link=link, world_size=world_size, strategy=name, **caps)
            recorded = ranks.run(_ddp_step, slowdown, backward, _shrunk(caps), name)
            predicted[name] = step
            emulated[name] = rename_like(scaled_back(recorded, slowdown, DDP_SHRINK, title=step.title), step)
    return predicted, emulated


def _shrunk(caps: Mapping[str, float]) -> dict[str, float]:
    """The caps of buckets, or PyTorch's own where none are given, for messages that are DDP_SHRINK times smaller."""
    return {name: cap / DDP_SHRINK for name, cap in ({"bucket_cap_mb": 25.0, "first_bucket_mb": 1.0} | caps).items()}


def _ddp_step(
    slowdown: float, backward: BackwardPass, caps: dict[str, float], strategy: str = "overlapped"
) -> Timeline:
    """On a rank: two steps to warm up, and one that is recorded.

    Compute never waits for messages, so it always catches up.
    """
    pace = Pace(max_lateness=ALWAYS_CATCH_UP)
    has_buckets = strategy not in ("naive", "flat")  # these two send when `average_gradients` is called
    model = STRATEGIES[strategy](nn.Sequential(*_ddp_layers(backward, pace)), **(caps if has_buckets else {}))
    for number in range(WARMUP_STEPS + 1):
        dist.barrier()
        pace.restart(slowdown if number == WARMUP_STEPS else 0.0)
        with record_timeline(model, source="emulated") as recorder:
            model(torch.ones(())).backward()
            if not has_buckets:
                model.average_gradients()
    return recorder.timeline


def _ddp_layers(backward: BackwardPass, pace: Pace) -> list[PacedMean]:
    """A layer for each gradient, in the order of forward: the last gradient belongs to the first layer."""
    forward_to_backward = backward.forward_seconds / (sum(backward.seconds) or 1.0)  # seconds per second of backward
    pairs = zip(backward.num_bytes, backward.seconds, strict=True)
    layers = [PacedMean(size / DDP_SHRINK, seconds * forward_to_backward, seconds, pace) for size, seconds in pairs]
    return layers[::-1]


# ---- a pipeline ----

PIPELINE_SECONDS = 2.0  # how long a step of a pipeline takes in slow motion
SAME_IDLE_SHARE = 0.03  # idle shares that differ by less are called equal, since a busy machine adds about as much
MAX_LATENESS = 0.1  # an action that starts later than this share of its own time did so because its input came late
WIDTH, ROWS = 8, 2  # the width of the tiny model's layers, and the rows of a micro-batch


def emulate_pipeline_step(
    schedule: Schedule, *, forward: Seconds, backward_input: Seconds, backward_weight: Seconds, send: float = 0.0
) -> Timeline:
    """What `simulate` predicts with the same arguments, run by `PipelineStage`. Takes some seconds.

    forward, backward_input, backward_weight, send: seconds of each kind of action, one number or one per stage. The
    Timeline has one span per action. ValueError for more than MAX_RANKS ranks or a step without duration.
    """
    check_world_size(schedule.num_ranks)
    seconds = seconds_by_kind(schedule.num_stages, forward, backward_input, backward_weight)
    times = dict(forward=forward, backward_input=backward_input, backward_weight=backward_weight)
    predicted = replace(simulate(schedule, **times, send=send), title=schedule.name)
    if not predicted.duration:
        raise ValueError("all durations are 0 s, so there is nothing to play: give one that is above 0")
    options = dict(world_size=schedule.num_ranks, seconds=PIPELINE_SECONDS)
    link = Link(latency=send, bandwidth=1e12)  # bytes per second, so many that a message takes the latency only
    return emulate(_pipeline_step, schedule, seconds, predicted=predicted, link=link, **options)


def larger_bubble(steps: Mapping[str, Timeline]) -> str:
    """Which step has the larger idle share, in the words of chapter 06's question."""
    idle = {name: step.bubble_fraction for name, step in steps.items()}
    if max(idle.values()) - min(idle.values()) < SAME_IDLE_SHARE:
        return "they stay equally large"
    return f"{max(idle, key=idle.get)}'s is larger"


def _pipeline_step(slowdown: float, schedule: Schedule, seconds: dict[str, list[float]]) -> Timeline:
    """On a rank: a first step without waits agrees on shapes, the second one is recorded."""
    stage = _PacedStage(schedule, seconds)
    x = torch.ones(ROWS * schedule.num_microbatches, WIDTH)
    for factor in (0.0, slowdown):
        dist.barrier()
        stage.pace.restart(factor)
        stage.step(x, x)
    return Timeline(spans=tuple(stage.pace.spans), source="emulated")


class _PacedStage(PipelineStage):
    """A stage whose actions, each a forward or a backward of one micro-batch, take their modelled time.

    seconds: kind of action -> seconds by stage.
    """

    def __init__(self, schedule: Schedule, seconds: dict[str, list[float]]) -> None:
        layers = [nn.Linear(WIDTH, WIDTH) for _ in range(schedule.num_stages)]
        super().__init__(layers, None, schedule, loss=nn.functional.mse_loss)  # None: the group of all ranks
        self.seconds, self.pace = seconds, Pace(MAX_LATENESS)

    def compute(self, action: Action, given: torch.Tensor | None):
        """Run one action at the pace. given: the tensor that it needs, from another stage.

        KINDS maps the kind of an action, such as "F", to the kind of a span, such as "forward".
        """
        run = partial(super().compute, action, given)
        return self.pace.run(run, self.seconds[action.kind][action.stage], str(action), KINDS[action.kind])


# ---- ZeRO-3 ----

ZERO_SECONDS = 1.5  # how long a step of ZeRO-3 takes in slow motion
LARGEST_UNIT = 65_536  # bytes of the largest unit (what Zero3 gathers at once, here a layer), once units are shrunk


def emulate_zero3_step(
    step: Zero3Step, *, link: Link, world_size: int, prefetch: int = 1, limit: int = 2, keep_parameters: bool = False
) -> Timeline:
    """What `simulate_zero3_step` predicts with the same arguments, run by our `Zero3`. Takes some seconds.

    Options of `Zero3`: prefetch, how many layers ahead it gathers weights; limit, how many layers may be gathered at
    once; keep_parameters, to free no weights between forward and backward. ValueError for more than MAX_RANKS ranks.
    """
    check_world_size(world_size)
    options = dict(prefetch=prefetch, limit=limit, keep_parameters=keep_parameters)
    predicted = simulate_zero3_step(step, link=link, world_size=world_size, **options)
    shrink = max(1.0, max(step.num_bytes) / LARGEST_UNIT)
    where = dict(link=link, world_size=world_size, seconds=ZERO_SECONDS, shrink=shrink)
    emulated = emulate(_zero3_step, step, shrink, options, predicted=predicted, **where)
    spans = [span for rank in emulated.ranks for span in _as_simulated(emulated.for_rank(rank).spans, step)]
    return replace(emulated, spans=spans)


def _zero3_step(slowdown: float, step: Zero3Step, shrink: float, options: dict) -> Timeline:
    """On a rank: the first step, without waits, finds the order of the layers; the second one is recorded."""
    pace, sizes = Pace(), [num_bytes / shrink for num_bytes in step.num_bytes]
    triples = zip(sizes, step.forward, step.backward, strict=True)
    layers = [PacedMean(num_bytes, forward, backward, pace) for num_bytes, forward, backward in triples]
    model = Zero3(nn.Sequential(*layers), **options)
    for factor in (0.0, slowdown):
        dist.barrier()
        pace.restart(factor)
        x = torch.ones((), requires_grad=True)  # its hook tells when the first layer's backward has ended
        with record_timeline(model.module, source="emulated") as recorder:
            x.register_hook(partial(_end_span, recorder))
            model(x).backward()
    return recorder.timeline


def _end_span(recorder: TimelineRecorder, gradient: Tensor) -> None:
    """End the span of the first layer's backward, which would last until the last reduce-scatter has arrived."""
    recorder.mark(None)


def _as_simulated(spans: Sequence[Span], step: Zero3Step) -> Iterator[Span]:
    """A rank's spans as the simulation has them: without waits, neither of compute nor in front of the link.

    A recorded message begins when it is passed to the link, which may still be busy with another one. A recorded layer
    begins when the one before it has ended, and then waits for its weights.
    """
    free = 0.0  # the time at which the link has carried the message before
    for span in sorted(spans, key=lambda span: span.start):
        if span.lane == "communication":
            yield replace(span, start=min(max(span.start, free), span.end))
            free = span.end
        elif span.name.isdigit():  # a layer is named by its position in the model
            unit = int(span.name)
            seconds = (step.forward if span.kind == "forward" else step.backward)[unit]
            yield replace(span, name=step.names[unit], start=max(span.start, span.end - seconds))
