"""A run that nobody recorded: six steps of DDP on four ranks, in made-up seconds, with a slow rank and a late batch."""

from __future__ import annotations

import random
from dataclasses import replace

from helpers.commands.traces.lanes import Step, Track
from helpers.commands.traces.messages import Message
from helpers.commands.traces.run import Run, run_of
from helpers.records import Span

RANKS, STEPS, LAYERS = 4, 6, 4
SLOW, LATE = 2, (0, 4)  # the rank that computes longer; the rank and step whose batch comes late
SECONDS = {"data": 0.004, "forward": 0.005, "backward": 0.010, "optimizer": 0.004, "host": 0.001}
SENT, LINK = 4 * 10**6, 0.008  # bytes, and the seconds of such a message


def example(title: str = "example") -> Run:
    """The same each time. In its steps all wait for rank 2, and in step 4 for rank 0."""
    tracks = {rank: Track(rank=rank, host="one") for rank in range(RANKS)}
    at, chance = [0.0] * RANKS, random.Random(0)
    for step in range(STEPS):
        began = list(at)
        _train(tracks, at, step, chance)
        for rank, track in tracks.items():
            track.steps.append(Step(number=step, start=began[rank], end=at[rank]))
    run = run_of(tracks, title=title, world=RANKS)
    return replace(run, timeline=replace(run.timeline, source="predicted"))


def _train(tracks: dict[int, Track], at: list[float], step: int, chance: random.Random) -> None:
    """One step: a batch, forward, backward with an all-reduce behind each layer, the optimizer. at: seconds by rank."""

    def works(lane: str, name: str, kind: str, part: str) -> None:
        for rank, track in tracks.items():
            share = 1.6 if (rank, part) == (SLOW, "backward") else 9.0 if (rank, step, part) == (*LATE, "data") else 1.0
            end = at[rank] + share * SECONDS[part] * chance.uniform(1.0, 1.1)
            track.spans.append(Span(rank=rank, lane=lane, name=name, kind=kind, start=at[rank], end=end))
            at[rank] = end

    works("data", "DataLoader", "data", "data")
    for layer in range(LAYERS):
        works("compute", f"layer {layer}", "forward", "forward")
    free = 0.0  # when the link is
    for number in range(LAYERS):
        works("compute", f"layer {LAYERS - 1 - number}", "backward", "backward")
        free = max(free, *at) + LINK
        for rank, track in tracks.items():
            track.messages.append(
                Message(
                    rank=rank, name="gloo:all_reduce", op="all_reduce", group=tuple(tracks), ready=at[rank], end=free,
                    num_bytes=SENT, sequence=step * LAYERS + number, step=step,
                )
            )  # fmt: skip
    at[:] = [max(seconds, free) for seconds in at]
    works("compute", "SGD.step", "optimizer", "optimizer")
    works("host", "loss.item", "other", "host")
