"""One line of numbers, cut for two worlds: the ranks before stand above it, those after below, tensors in between."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from helpers.draw.scene import WIDTH, Label, Line, Rect, Scene
from helpers.learner.words import book

say = book("pictures")
_LEFT, _SIDE, _TOP, _SHARD, _GAP = 100.0, 20.0, 46.0, 26.0, 10.0
_CELL = 40.0  # the height of a tensor
_COLOURS = ("rank4", "rank1", "rank6", "rank3")


def reshard_scene(tensors: Mapping[str, int], before: int, after: int, *, title: str, width: float = WIDTH) -> Scene:
    """tensors: a name to how many numbers it has. before, after: ranks. Zeros that fill the last shard are hatched.

    ValueError for a world without ranks, or for more tensors than there are colours.
    """
    if min(before, after) < 1 or not 1 <= len(tensors) <= len(_COLOURS):
        raise ValueError(
            f"recut_scene got {len(tensors)} tensors, {before} and {after} ranks; "
            f"it draws 1 to {len(_COLOURS)} tensors for at least one rank each"
        )
    total = sum(tensors.values())
    shares = [-(-total // ranks) for ranks in (before, after)]
    cell = (width - _LEFT - _SIDE) / max(before * shares[0], after * shares[1])
    middle = _TOP + _SHARD + _GAP
    items: list[Rect | Label | Line] = [Label(x=14, y=20, text=title, size=14, bold=True)]
    items += _world(before, shares[0], total, cell, _TOP)
    items += _tensors(tensors, cell, middle)
    items += _world(after, shares[1], total, cell, middle + _CELL + _GAP)
    summary = say("recut", tensors=list(tensors), before=before, after=after, share=shares[0], other=shares[1])
    return Scene(width=width, height=middle + _CELL + 2 * _GAP + _SHARD, title=title, summary=summary, items=items)


def _world(ranks: int, share: int, total: int, cell: float, y: float) -> Iterator[Rect | Label]:
    """A frame a shard, hatched where it goes beyond the numbers."""
    yield Label(x=14, y=y + _SHARD / 2, text=say("ranks", num=ranks), bold=True)
    for rank in range(ranks):
        x, wide = _LEFT + rank * share * cell, share * cell - 4
        beyond = min(share, max(0, (rank + 1) * share - total)) * cell
        if beyond:
            yield Rect(x=x + wide + 2 - beyond, y=y, width=beyond, height=_SHARD, texture="hatch", tooltip=say("zeros"))
        yield Rect(x=x + 2, y=y, width=wide, height=_SHARD, stroke="ink", stroke_width=1.5, radius=4)
        yield Label(x=x + (wide - beyond) / 2, y=y + _SHARD / 2, text=f"rank {rank}", anchor="middle")


def _tensors(tensors: Mapping[str, int], cell: float, y: float) -> Iterator[Rect | Label | Line]:
    """A brick a tensor, with a mark between two numbers."""
    x = _LEFT
    for colour, (name, numel) in zip(_COLOURS, tensors.items(), strict=False):
        yield Rect(x=x + 1, y=y, width=numel * cell - 2, height=_CELL, fill=colour)
        for edge in (x + number * cell for number in range(1, numel)):
            yield Line(x1=edge, y1=y + _CELL - 9, x2=edge, y2=y + _CELL, colour="ink")
        yield Label(
            x=x + numel * cell / 2, y=y + _CELL / 2 - 4, text=name, anchor="middle", on=colour, bold=True, size=13
        )
        x += numel * cell
