"""Draws what chapter 06 shows of pipelines: calls that match or hang, ways to split layers into stages, tied weights.

A pipeline splits a chain of layers into stages, one per rank, and a batch into micro-batches. 1F1B is a schedule in
which a rank alternates one forward and one backward. Tied weights are one matrix that two ranks share. `calls_scene` is
also used by chapter 10. The pipeline's step itself is drawn by `helpers.draw.pipeline`.

A Scene is a picture as plain data: rectangles (Rect), labels and lines, in pixels from the top left corner. Plain
numbers in the code are such pixels. A kind of the palette, such as "forward", stands for a colour and a texture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from helpers.draw.plot import curves_scene
from helpers.draw.scene import (
    MARGIN,
    WIDTH,
    Label,
    Line,
    Rect,
    Scene,
    centred_label,
    heading,
    labelled_box,
    stacked_scene,
    title_label,
)
from helpers.predict.time.pipeline import simulate
from helpers.records import Timeline
from helpers.schedules import one_f_one_b

# Pixels: above the calls, from call to call, and a call's height and width.
_CALLS_TOP, _CALL_PITCH, _CALL_HEIGHT, _CALL_WIDTH = 62.0, 42.0, 28.0, 190.0
_CALL_STYLES = {
    "done": {"fill": "surface", "stroke": "rule"},
    "waits": {"fill": "communication", "stroke": "ink", "stroke_width": 2.0},
    "never": {"fill": "panel"},
}
_ROW, _BAR, _LAYERS_LEFT = 33.0, 24.0, 52.0  # pixels: from rank to rank, a layer's height, left of the layers


# -- calls of two ranks ----------------------------------------------------------------------------------------------
def calls_scene(
    calls: Sequence[Sequence[str]],
    matched: Sequence[tuple[int, int]],
    *,
    awaited: Sequence[tuple[int, int]] = (),
    title: str,
) -> Scene:
    """A Scene of the calls of two ranks, one column per rank in the order of its calls.

    `matched` lists pairs of calls that complete each other, as (index in rank 0's list, index in rank 1's list). A rank
    waits at its first call without a match, and never reaches the calls after it. An arrow goes from a send to its
    receive; a dashed arrow goes from a send that waits to the receive for which it waits, from the pairs in `awaited`.
    Raises ValueError for other than two ranks.
    """
    if len(calls) != 2:
        raise ValueError(f"calls_scene draws two ranks beside each other, not {len(calls)}")
    columns, items = (WIDTH * 0.1, WIDTH * 0.9 - _CALL_WIDTH), [title_label(title)]
    for rank, (texts, x) in enumerate(zip(calls, columns, strict=True)):
        done = {pair[rank] for pair in matched}
        waits_at = next((index for index in range(len(texts)) if index not in done), len(texts))
        items.append(centred_label(x + _CALL_WIDTH / 2, _CALLS_TOP - 16, f"rank {rank}", bold=True))
        for index, text in enumerate(texts):
            state = "done" if index < waits_at else "waits" if index == waits_at else "never"
            items += _call(text, x, index, state)
    for left, right in (*matched, *awaited):
        is_from_left = calls[0][left].startswith(("send", "isend"))
        is_dashed = (left, right) in awaited
        items.append(_call_arrow(left, right, columns, is_from_left=is_from_left, is_dashed=is_dashed))
    height = _CALLS_TOP + max(map(len, calls)) * _CALL_PITCH + 4
    return Scene(height=height, title=title, summary=_calls_summary(calls, matched), items=items)


def blocking_sends_scene() -> Scene:
    """1F1B on two ranks with two micro-batches, where each send waits for its receive and both ranks hang."""
    calls = (
        ("send activation 0", "send activation 1", "recv gradient 0", "recv gradient 1"),
        ("recv activation 0", "send gradient 0", "recv activation 1", "send gradient 1"),
    )
    title = "Each send waits for a receive that comes after the other send"
    return calls_scene(calls, matched=[(0, 0)], awaited=[(1, 2), (2, 1)], title=title)


def _call(text: str, x: float, index: int, state: str) -> Iterator[Rect | Label]:
    """A call as a box; `state` is "done", "waits" or "never"."""
    y = _CALLS_TOP + index * _CALL_PITCH
    waits = state == "waits"
    yield Rect(x=x, y=y, width=_CALL_WIDTH, height=_CALL_HEIGHT, radius=5, **_CALL_STYLES[state])
    style = {"on": "communication" if waits else "", "colour": "muted" if state == "never" else "ink", "bold": waits}
    yield centred_label(x + _CALL_WIDTH / 2, y + _CALL_HEIGHT / 2, f"{text} · waits" if waits else text, **style)


def _call_arrow(left: int, right: int, columns: tuple[float, float], *, is_from_left: bool, is_dashed: bool) -> Line:
    """The arrow between a call of rank 0 and one of rank 1, whose indices are `left` and `right`."""
    heights = [_CALLS_TOP + index * _CALL_PITCH + _CALL_HEIGHT / 2 for index in (left, right)]
    ends = [(columns[0] + _CALL_WIDTH + 4, heights[0]), (columns[1] - 4, heights[1])]
    (x1, y1), (x2, y2) = ends if is_from_left else ends[::-1]
    return Line(x1=x1, y1=y1, x2=x2, y2=y2, colour="communication", width=2.0, arrow=True, dashed=is_dashed)


def _calls_summary(calls: Sequence[Sequence[str]], matched: Sequence[tuple[int, int]]) -> str:
    """What the picture shows, for readers who cannot see it."""
    lists = " ".join(f"Rank {rank}: {', '.join(texts)}." for rank, texts in enumerate(calls))
    return f"{lists} Calls that meet: {len(matched)} pairs. A rank waits where its call has no counterpart."


# -- layers split into stages ----------------------------------------------------------------------------------------
def stage_splits_scene(costs: Sequence[float], splits: Mapping[str, Sequence[int]], *, title: str) -> Scene:
    """Several ways to split a chain of layers into stages, side by side: a row per rank, a layer as wide as its cost.

    `splits` maps a name to the number of layers of each stage. The slowest stage of each split has an outline and a
    bold sum. Raises ValueError for a split that does not use each layer once.
    """
    for name, sizes in splits.items():
        if sum(sizes) != len(costs):
            raise ValueError(f"the split {name!r} has {sum(sizes)} layers of {len(costs)}: give a size for each stage")
    stages_by_split = {name: _stages(costs, sizes) for name, sizes in splits.items()}
    panel_width = (WIDTH - MARGIN) / len(splits)
    highest_cost = max(sum(stage) for stages in stages_by_split.values() for stage in stages)
    scale = (panel_width - _LAYERS_LEFT - 84) / highest_cost  # 84 pixels for the sum on the right
    items, top = heading(title, [])  # title and legend, and the y where they end
    for number, (name, stages) in enumerate(stages_by_split.items()):
        x = MARGIN + number * panel_width
        items.append(Label(x=x, y=top + 8, text=name, bold=True, colour="muted"))
        for rank, stage in enumerate(stages):
            items += _stage_row(rank, stage, x, top + 22 + rank * _ROW, scale, max(map(sum, stages)))
    height = top + 22 + max(map(len, stages_by_split.values())) * _ROW
    summary = " ".join(
        f"{name}: {', '.join(f'{sum(stage):g}' for stage in stages)}." for name, stages in stages_by_split.items()
    )
    return Scene(height=height, title=title, summary=summary, items=items)


def stage_split_timelines(
    costs: Sequence[float], splits: Mapping[str, Sequence[int]], num_microbatches: int, *, seconds: float
) -> list[Timeline]:
    """A predicted step of 1F1B for each split; `seconds` is how long the forward of a layer of cost 1 takes.

    The backward takes twice as long: as long as the forward for the gradients of the inputs, and as long again for
    those of the weights.
    """
    timelines = []
    for name, sizes in splits.items():
        stage_seconds = [seconds * sum(stage) for stage in _stages(costs, sizes)]
        times = dict(forward=stage_seconds, backward_input=stage_seconds, backward_weight=stage_seconds)
        step = simulate(one_f_one_b(len(sizes), num_microbatches), **times)
        timelines.append(replace(step, title=name))
    return timelines


def _stages(costs: Sequence[float], sizes: Sequence[int]) -> list[list[float]]:
    """The costs of each stage's layers."""
    remaining = iter(costs)
    return [[next(remaining) for _ in range(size)] for size in sizes]


def _stage_row(
    rank: int, stage: list[float], left: float, y: float, scale: float, slowest: float
) -> Iterator[Rect | Label]:
    """The layers of one rank and the sum of their costs; where that is `slowest`, with an outline."""
    total, x = sum(stage), left + _LAYERS_LEFT
    yield Label(x=left, y=y + _BAR / 2, text=f"rank {rank}")
    for cost in stage:
        yield from labelled_box(x, y, cost * scale - 2, _BAR, f"{cost:g}", fill="forward", radius=3)
        x += cost * scale
    if total == slowest:
        width = total * scale
        yield Rect(x=x - width - 3, y=y - 3, width=width + 4, height=_BAR + 6, stroke="ink", radius=4)
    yield Label(x=x + 8, y=y + _BAR / 2, text=f"= {total:g}", bold=total == slowest)


# -- tied weights ----------------------------------------------------------------------------------------------------
class TiedWeightsRun(Protocol):
    """What `tied_weights_scene` needs of a run: its losses, and how far the two replicas of the matrix differ.

    `apart` is the largest difference of the two, before the first step and after each step.
    """

    losses: list[float]
    apart: list[float]


def tied_weights_scene(runs: Mapping[str, TiedWeightsRun]) -> Scene:
    """A matrix that two ranks share, with and without the exchange of its gradients.

    The losses of each run stand above, and how far its two replicas differ below; steps go from left to right.
    """
    losses = {name: list(enumerate(run.losses)) for name, run in runs.items()}
    differences = {name: list(enumerate(run.apart)) for name, run in runs.items()}
    dashed = list(runs)[1::2]  # where two curves are equal, both are seen
    above = curves_scene(losses, x="step", y="of the batch", title="Loss", dashed=dashed)
    title = "Largest difference between the two replicas"
    below = curves_scene(differences, x="step", y="of one weight", title=title, dashed=dashed)
    return stacked_scene(above, below, title="A tied matrix, with and without the exchange")
