"""Ways to cut a chain of layers into stages, side by side: a brick a layer, as wide as its cost, a row a rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from helpers.draw.scene import WIDTH, Label, Rect, Scene, heading
from helpers.predict.time.pipeline import simulate
from helpers.records import Timeline
from helpers.schedules import one_f_one_b

_ROW, _BAR, _LEFT = 33.0, 24.0, 66.0


def cuts_scene(costs: Sequence[float], cuts: Mapping[str, Sequence[int]], *, title: str, width: float = WIDTH) -> Scene:
    """cuts: a name to how many layers each stage gets. The slowest stage of each has an outline and a bold sum.

    ValueError for a cut that does not use each layer once.
    """
    for name, sizes in cuts.items():
        if sum(sizes) != len(costs):
            raise ValueError(f"the cut {name!r} shares out {sum(sizes)} layers of {len(costs)}: give a size a stage")
    stages = {name: _stages(costs, sizes) for name, sizes in cuts.items()}
    panel = (width - 14) / len(cuts)
    scale = (panel - _LEFT - 70) / max(sum(stage) for row in stages.values() for stage in row)
    items, top = heading(title, [], width)
    for number, (name, row) in enumerate(stages.items()):
        x = 14 + number * panel
        items.append(Label(x=x, y=top + 8, text=name, bold=True, colour="muted"))
        for rank, stage in enumerate(row):
            items += _row(rank, stage, x, top + 22 + rank * _ROW, scale, max(map(sum, row)))
    height = top + 22 + max(map(len, stages.values())) * _ROW
    summary = " ".join(f"{name}: {', '.join(f'{sum(s):g}' for s in row)}." for name, row in stages.items())
    return Scene(width=width, height=height, title=title, summary=summary, items=items)


def cut_steps(
    costs: Sequence[float], cuts: Mapping[str, Sequence[int]], num_microbatches: int, *, seconds: float
) -> list[Timeline]:
    """A step of 1F1B for each cut. seconds: of a forward of cost 1; backward takes two."""
    steps = []
    for name, sizes in cuts.items():
        each = [seconds * sum(stage) for stage in _stages(costs, sizes)]
        times = dict(forward=each, backward_input=each, backward_weight=each)
        step = simulate(one_f_one_b(len(sizes), num_microbatches), **times)
        steps.append(replace(step, title=name))
    return steps


def _stages(costs: Sequence[float], sizes: Sequence[int]) -> list[list[float]]:
    """The costs of each stage's layers."""
    left = iter(costs)
    return [[next(left) for _ in range(size)] for size in sizes]


def _row(rank: int, stage: list[float], x: float, y: float, scale: float, slowest: float) -> Iterator[Rect | Label]:
    total, at = sum(stage), x + _LEFT - 14
    yield Label(x=x, y=y + _BAR / 2, text=f"rank {rank}")
    for cost in stage:
        yield Rect(x=at, y=y, width=cost * scale - 2, height=_BAR, fill="forward", radius=3)
        yield Label(x=at + cost * scale / 2 - 1, y=y + _BAR / 2, text=f"{cost:g}", anchor="middle", on="forward")
        at += cost * scale
    if total == slowest:
        yield Rect(x=at - total * scale - 3, y=y - 3, width=total * scale + 4, height=_BAR + 6, stroke="ink", radius=4)
    yield Label(x=at + 8, y=y + _BAR / 2, text=f"= {total:g}", bold=total == slowest)
