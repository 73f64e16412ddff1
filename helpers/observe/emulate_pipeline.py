"""A pipeline schedule played by real ranks: our runtime, real messages and gradients, modelled durations.

1. Slow motion: all times are stretched alike until the step takes PLAYED seconds, so that the milliseconds which a
   small machine loses do not show.
2. Each rank plays the schedule with a tiny model; an action ends when its modelled time has passed.
3. The recording is scaled back. What comes out is labelled "emulated", and is never speed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import nn

from helpers.observe.paced import wait_until
from helpers.parallel.pipeline import PipelineStage
from helpers.predict.time.pipeline import KINDS, Seconds, durations, simulate
from helpers.ranks import Ranks
from helpers.ranks.live import keep_current
from helpers.records import Span, Timeline
from helpers.schedules import Action, Schedule
from helpers.specs import Link

PLAYED = 2.0  # seconds that a step takes on the ranks
MAX_RANKS = 8  # processes that one machine is asked to run
ALIKE = 0.03  # idle shares closer than this are not told apart: what a busy machine adds to them
LATE = 0.1  # an action that starts later than this share of its own time did so because its input came late
WIDTH, ROWS = 8, 2  # of the tiny model and its micro-batches


def emulate_pipeline_step(
    schedule: Schedule, *, forward: Seconds, backward_input: Seconds, backward_weight: Seconds, send: float = 0.0
) -> Timeline:
    """What `simulate` predicts with the same arguments, played by `PipelineStage` on ranks of its own.

    An emulated Timeline in the seconds of the arguments, a span an action; takes some seconds. ValueError for more than
    MAX_RANKS ranks or a step without duration, RankError when a rank fails.
    """
    if schedule.num_ranks > MAX_RANKS:
        raise ValueError(
            f"{schedule.num_ranks} ranks would be as many processes on this machine: emulate 1 to {MAX_RANKS}"
        )
    seconds = durations(schedule.num_stages, forward, backward_input, backward_weight)
    times = dict(forward=forward, backward_input=backward_input, backward_weight=backward_weight)
    predicted = simulate(schedule, **times, send=send)
    if not predicted.duration:
        raise ValueError("all durations are 0 s, so there is nothing to play: give one that is above 0")
    slowdown = PLAYED / predicted.duration
    link = Link(latency=send * slowdown, bandwidth=1e12)
    with keep_current(), Ranks(schedule.num_ranks, device="cpu", link=link, quiet=True) as ranks:
        played = Timeline.merge(ranks.run(_played_step, schedule, seconds, slowdown)).shifted_to_zero()
    spans = tuple(
        Span.unchecked(s.rank, s.lane, s.name, s.kind, s.start / slowdown, s.end / slowdown) for s in played.spans
    )
    return Timeline(spans=spans, source="emulated", title=schedule.name)


def larger_bubble(steps: Mapping[str, Timeline]) -> str:
    """Whose idle share is larger, in the words of guess 06.slow; shares within ALIKE are equally large."""
    idle = {name: step.bubble_fraction for name, step in steps.items()}
    if max(idle.values()) - min(idle.values()) < ALIKE:
        return "they stay equally large"
    return f"{max(idle, key=idle.get)}'s is larger"


def _played_step(schedule: Schedule, seconds: dict[str, list[float]], slowdown: float) -> Timeline:
    """On a rank: a step without waits agrees on shapes, the second one is kept."""
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(schedule.num_stages)]
    stage = _PacedStage(layers, schedule, seconds)
    x = torch.ones(ROWS * schedule.num_microbatches, WIDTH)
    for stage.slowdown in (0.0, slowdown):
        stage.spans = []
        dist.barrier()
        stage.ready = time.perf_counter()
        stage.step(x, x)
    return Timeline(spans=tuple(stage.spans), source="emulated")


class _PacedStage(PipelineStage):
    """Each action ends when its modelled time has passed; the next one starts there, not a little later."""

    def __init__(self, layers: list[nn.Module], schedule: Schedule, seconds: dict[str, list[float]]) -> None:
        super().__init__(layers, None, schedule, loss=nn.functional.mse_loss)
        self.seconds = seconds

    def compute(self, action: Action, given: torch.Tensor | None):
        duration, now = self.seconds[action.kind][action.stage] * self.slowdown, time.perf_counter()
        start = self.ready if now - self.ready < LATE * duration else now
        made = super().compute(action, given)
        self.ready = start + duration
        wait_until(self.ready)
        span = Span(
            rank=self.rank, lane="compute", name=str(action), kind=KINDS[action.kind], start=start, end=self.ready
        )
        self.spans.append(span)
        return made
