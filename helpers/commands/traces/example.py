"""Makes up the trace of a DDP run on four ranks, with a slow rank and a late batch, for the explorer of chapter 10.

A track is what one rank did: its spans, steps and messages. The tracks are built step by step; `clocks` holds the time
up to which each rank's track is built.
"""

from __future__ import annotations

import random
from dataclasses import replace

from helpers.commands.traces.lanes import RankTrack, Step
from helpers.commands.traces.messages import TracedMessage
from helpers.commands.traces.run import TraceRun, run_of
from helpers.records import Span

RANKS, STEPS, LAYERS = 4, 6, 4  # how many of each
SLOW_RANK, SLOW_FACTOR = 2, 1.6  # the rank whose backward takes longer
LATE_BATCH, LATE_FACTOR = (0, 4), 9.0  # the rank and the step whose batch is loaded late
SECONDS = {"data": 0.004, "forward": 0.005, "backward": 0.010, "optimizer": 0.004, "host": 0.001}
MESSAGE_BYTES, MESSAGE_SECONDS = 4 * 10**6, 0.008  # of the all-reduce after each layer's backward


def example(title: str = "example") -> TraceRun:
    """The run, the same each time. In each step all ranks wait for rank 2, but in step 4 for rank 0."""
    tracks = {rank: RankTrack(rank=rank, host="one") for rank in range(RANKS)}  # all on one machine
    clocks, generator = [0.0] * RANKS, random.Random(0)
    for step in range(STEPS):
        starts = list(clocks)
        _train_step(tracks, clocks, step, generator)
        for rank, track in tracks.items():
            track.steps.append(Step(number=step, start=starts[rank], end=clocks[rank]))
    run = run_of(tracks, title=title, world=RANKS)
    return replace(run, timeline=replace(run.timeline, source="predicted"))  # `run_of` says "recorded"


def _train_step(tracks: dict[int, RankTrack], clocks: list[float], step: int, generator: random.Random) -> None:
    """Adds one step: a batch, forward, backward with an all-reduce after each layer, the optimizer.

    clocks: the time of each rank in seconds, which moves on.
    """

    def add_spans(lane: str, name: str, kind: str, part: str) -> None:
        """Adds a span to each rank's track, about as long as SECONDS says for this part."""
        for rank, track in tracks.items():
            is_slow = (rank, part) == (SLOW_RANK, "backward")
            factor = SLOW_FACTOR if is_slow else LATE_FACTOR if (rank, step, part) == (*LATE_BATCH, "data") else 1.0
            end = clocks[rank] + factor * SECONDS[part] * generator.uniform(1.0, 1.1)
            track.spans.append(Span(rank=rank, lane=lane, name=name, kind=kind, start=clocks[rank], end=end))
            clocks[rank] = end

    add_spans("data", "DataLoader", "data", "data")
    for layer in range(LAYERS):
        add_spans("compute", f"layer {layer}", "forward", "forward")
    link_free = 0.0  # the time at which the link can take the next message
    for number in range(LAYERS):
        add_spans("compute", f"layer {LAYERS - 1 - number}", "backward", "backward")
        link_free = max(link_free, *clocks) + MESSAGE_SECONDS
        for rank, track in tracks.items():
            track.messages.append(
                TracedMessage(
                    rank=rank, name="gloo:all_reduce", op="all_reduce", group=tuple(tracks), ready=clocks[rank],
                    end=link_free, num_bytes=MESSAGE_BYTES, sequence=step * LAYERS + number, step=step,
                )
            )  # fmt: skip
    clocks[:] = [max(seconds, link_free) for seconds in clocks]
    add_spans("compute", "SGD.step", "optimizer", "optimizer")
    add_spans("host", "loss.item", "other", "host")
