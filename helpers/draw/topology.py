"""Who sends to whom: ranks as boxes on a ring, in a tree or around a master, with an arrow for each message."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from helpers.draw.scene import Label, Line, Rect, Scene, text_width

TOPOLOGIES = ("ring", "tree", "star")
_BOX, _RADIUS, _HEADER, _WIDTH = 30.0, 104.0, 44.0, 440.0  # _BOX is half the width of a rank's box
Edge = tuple[int, int]


def topology_scene(
    kind: str,
    num_ranks: int,
    *,
    title: str = "",
    edges: Mapping[Edge, str] | None = None,
    names: Mapping[int, str] | None = None,
    width: float = _WIDTH,
) -> Scene:
    """A Scene of `num_ranks` ranks; `edges` maps (from, to) to the text at that arrow, by default the topology's own.

    ring: each to the next. tree: each parent (i - 1) // 2 to its children. star: rank 0 to every other rank.
    `names` replaces "rank 0" by, say, "master". ValueError for an unknown topology or an edge to a missing rank.
    """
    if kind not in TOPOLOGIES:
        raise ValueError(f"no topology {kind!r}; the known ones are {', '.join(TOPOLOGIES)}")
    if num_ranks < 2:
        raise ValueError(f"num_ranks is {num_ranks!r}, but a topology needs at least 2")
    arrows = dict.fromkeys(_own_edges(kind, num_ranks), "") if edges is None else dict(edges)
    wrong = [edge for edge in arrows if not all(0 <= rank < num_ranks for rank in edge) or edge[0] == edge[1]]
    if wrong:
        raise ValueError(f"edge {wrong[0]} does not join two of the ranks 0 to {num_ranks - 1}")
    places = _places(kind, num_ranks, width)
    height = max(y for _, y in places) + 32
    title = title or f"{kind} of {num_ranks} ranks"
    items = [Label(x=14, y=20, text=title, size=14, bold=True)]
    for edge, text in arrows.items():
        items += _arrow(places[edge[0]], places[edge[1]], text, (edge[1], edge[0]) in arrows)
    for rank, place in enumerate(places):
        items += _box((names or {}).get(rank, f"rank {rank}"), place, is_first=kind == "star" and rank == 0)
    summary = f"Messages: {'; '.join(f'{a} to {b} {text}'.strip() for (a, b), text in arrows.items())}."
    return Scene(width=width, height=height, title=title, summary=summary, items=tuple(items))


def _own_edges(kind: str, num_ranks: int) -> list[Edge]:
    if kind == "ring":
        return [(rank, (rank + 1) % num_ranks) for rank in range(num_ranks)]
    parent = {"tree": lambda rank: (rank - 1) // 2, "star": lambda rank: 0}[kind]
    return [(parent(rank), rank) for rank in range(1, num_ranks)]


def _places(kind: str, num_ranks: int, width: float) -> list[tuple[float, float]]:
    """The middle of each box."""
    if kind == "tree":
        return [_tree_place(rank, width) for rank in range(num_ranks)]
    on_circle = num_ranks if kind == "ring" else num_ranks - 1
    turns = [number / on_circle * 2 * math.pi - math.pi / 2 for number in range(on_circle)]
    middle = width / 2, _HEADER + 24 + _RADIUS
    circle = [(middle[0] + (width / 2 - 80) * math.cos(t), middle[1] + _RADIUS * math.sin(t)) for t in turns]
    return circle if kind == "ring" else [middle, *circle]


def _tree_place(rank: int, width: float) -> tuple[float, float]:
    level = (rank + 1).bit_length() - 1
    place = rank + 1 - 2**level
    return (place + 0.5) / 2**level * (width - 40) + 20, _HEADER + 24 + level * 90


def _arrow(start: tuple, end: tuple, text: str, is_double: bool) -> Iterator[Line | Label]:
    """From the edge of one box to the edge of the other; two opposite arrows lie beside each other."""
    (x1, y1), (x2, y2) = start, end
    length = math.hypot(x2 - x1, y2 - y1)
    ux, uy = (x2 - x1) / length, (y2 - y1) / length
    aside = 5.0 if is_double else 0.0
    sx, sy = -uy * aside, ux * aside
    keep = _distance(ux, uy)
    line = Line(
        x1=x1 + ux * keep + sx,
        y1=y1 + uy * keep + sy,
        x2=x2 - ux * keep + sx,
        y2=y2 - uy * keep + sy,
        colour="communication",
        width=1.8,
        arrow=True,
        tooltip=text,
    )
    yield line
    if text:
        yield _edge_label(line, -uy, ux, text, is_double)


def _distance(ux: float, uy: float) -> float:
    """From the middle of a box to where a ray leaves it, and a little more."""
    to_side = (_BOX + 4) / abs(ux) if abs(ux) > 1e-9 else math.inf
    to_top = 17 / abs(uy) if abs(uy) > 1e-9 else math.inf
    return min(to_side, to_top)


def _edge_label(line: Line, nx: float, ny: float, text: str, is_double: bool) -> Label:
    """On the right of the arrow (of two opposite ones each has its own side), clear of it by the text's width."""
    away = 8 + abs(nx) * text_width(text, 11) / 2
    share = 0.42 if is_double else 0.5
    x, y = line.x1 + (line.x2 - line.x1) * share, line.y1 + (line.y2 - line.y1) * share
    return Label(x=x + nx * away, y=y + ny * away, text=text, size=11, anchor="middle")


def _box(name: str, place: tuple[float, float], *, is_first: bool) -> Iterator[Rect | Label]:
    x, y = place
    fill = "parameters" if is_first else "buffers"
    yield Rect(x=x - _BOX, y=y - 13, width=2 * _BOX, height=26, radius=5, fill=fill)
    yield Label(x=x, y=y, text=name, size=12, anchor="middle", on=fill)
