"""A mesh of three axes as a solid: stages from left to right, parts of matrices downward, copies behind each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, product

from helpers.draw.cards import card
from helpers.draw.mesh import AXIS_KINDS, axis_look, members
from helpers.draw.scene import WIDTH, Label, Line, Rect, Scene
from helpers.learner.words import book
from helpers.specs.mesh import Mesh

say = book("mesh").section("cube")
AXES = ("dp", "pp", "tp")
PLACES = ("pp", "dp", "tp")  # as a rank is numbered, what changes fastest last
_CARD, _HIGH, _DEPTH, _RISE, _GAP = 104.0, 52.0, 124.0, 72.0, 24.0  # pixels at full size
_SIDE, _TOP, _PLANE = 26.0, 66.0, 12.0
_ROOM, _SMALLEST = (482.0, 440.0), 64.0
_WORDS, _LINE = 556.0, 18.0


@dataclass(frozen=True, kw_only=True)
class _Solid:
    """at: the middle of each rank's card. wide, high: of a card. low: the lowest pixel of them all."""

    mesh: Mesh
    at: dict[int, tuple[float, float]]
    wide: float
    high: float
    low: float


def cube_scene(mesh: Mesh, rank: int | None = 0, *, title: str = "") -> Scene:
    """A Scene of Mesh(dp=2, pp=2, tp=2) or a little more: a card for each rank, an edge to its next on each axis.

    The groups of `rank` are lit, each in the colour of its axis. Beside it stands what each axis cuts and sends.
    ValueError for axes besides dp, pp and tp, a rank that is not there, or more ranks than fit: see `mesh_scene`.
    """
    solid = _solid(mesh)
    axes = [axis for axis in AXES if getattr(mesh, axis) > 1]
    groups = {} if rank is None else {axis: mesh.ranks_along(axis, rank) for axis in axes}
    sizes = " × ".join(f"{axis} {getattr(mesh, axis)}" for axis in AXES)
    title = title or say("title", sizes=sizes, ranks=mesh.world_size)
    items: list[Rect | Label | Line] = [Label(x=14, y=20, text=title, size=14, bold=True)]
    if solid.wide < _CARD:  # too narrow for the axes' names
        items.append(Label(x=14, y=38, text=say("order", axes=", ".join(PLACES)), size=11, colour="muted"))
    behind_first = sorted(solid.at, key=lambda each: -mesh.coordinates(each)["dp"])
    for copy, sheet in groupby(behind_first, lambda each: mesh.coordinates(each)["dp"]):
        items += _sheet(copy, solid)
        items += _edges(sheet, solid, ("pp", "tp"))
    items += _edges(behind_first, solid, ("dp",))
    items += _edges(behind_first, solid, axes, groups)
    for each in behind_first:
        items += _rank(each, solid, rank, groups)
    words = list(_words(axes, mesh, rank, groups))
    height = max([solid.low + 2 * _PLANE, *(word.y + 20 for word in words)])
    said = [say("shares", rank=rank, axis=axis, ranks=members(group)) for axis, group in groups.items()]
    summary = say("summary", ranks=mesh.world_size, dp=mesh.dp, pp=mesh.pp, tp=mesh.tp, said=said or [""])
    return Scene(width=WIDTH, height=height, title=title, summary=summary, items=(*items, *words))


def _solid(mesh: Mesh) -> _Solid:
    """No card hides another, however many copies stand behind: a step across is longer than all of these."""
    if mesh.cp * mesh.ep > 1:
        raise ValueError(f"cube_scene draws dp, pp and tp; the mesh has cp={mesh.cp}, ep={mesh.ep}: see mesh_scene")
    behind, card_size = mesh.dp - 1, (_CARD, _HIGH)
    across, down = behind * _DEPTH + _CARD + _GAP, behind * _RISE + _HIGH + _GAP
    steps = {"pp": (across, 0), "tp": (0, down), "dp": (_DEPTH, -_RISE)}
    spans = [[(getattr(mesh, axis) - 1) * abs(step[way]) for axis, step in steps.items()] for way in (0, 1)]
    size = min(1.0, *(most / (sum(span) + card) for most, span, card in zip(_ROOM, spans, card_size, strict=True)))
    if _CARD * size < _SMALLEST:
        sizes = f"dp {mesh.dp} × pp {mesh.pp} × tp {mesh.tp}"
        raise ValueError(f"cube_scene has no room for {sizes}; take a smaller mesh, or mesh_scene")
    wide, high = _CARD * size, _HIGH * size
    first = (_SIDE + wide / 2, _TOP + behind * _RISE * size + high / 2)
    at = {}
    for rank in range(mesh.world_size):
        place = mesh.coordinates(rank)
        x, y = (first[way] + size * sum(place[axis] * step[way] for axis, step in steps.items()) for way in (0, 1))
        at[rank] = x, y
    return _Solid(mesh=mesh, at=at, wide=wide, high=high, low=max(y for _, y in at.values()) + high / 2)


def _sheet(copy: int, solid: _Solid) -> Iterator[Rect | Label]:
    """What a copy of the model stands on: what lies behind it looks pale."""
    mesh = solid.mesh
    x, y = solid.at[mesh.rank_at(dp=copy)]
    right, low = solid.at[mesh.rank_at(dp=copy, pp=mesh.pp - 1, tp=mesh.tp - 1)]
    half, high = solid.wide / 2 + _PLANE, solid.high / 2 + _PLANE
    frame = {"x": x - half, "y": y - high, "width": right - x + 2 * half, "height": low - y + 2 * high, "radius": 8}
    for fill, opacity in (("surface", 0.55), ("other", 0.12)):
        yield Rect(**frame, fill=fill, opacity=opacity)
    yield Rect(**frame, stroke="rule")
    if mesh.dp > 1:
        yield Label(x=right + half, y=y - high - 9, text=say("copy", copy=copy), size=11, anchor="end", colour="muted")


def _edges(
    ranks: Iterable[int], solid: _Solid, axes: Iterable[str], groups: Mapping[str, list[int]] | None = None
) -> Iterator[Line]:
    """From these ranks to the next on each axis; with groups those alone that lie within them, thick."""
    for rank, axis in product(ranks, axes):
        place = {name: solid.mesh.coordinates(rank)[name] for name in AXES}
        if place[axis] + 1 == getattr(solid.mesh, axis) or (groups is not None and rank not in groups.get(axis, ())):
            continue
        after = solid.mesh.rank_at(**place | {axis: place[axis] + 1})
        (x1, y1), (x2, y2) = solid.at[rank], solid.at[after]
        ends = {"x1": x1, "y1": y1, "x2": x2, "y2": y2, "tooltip": say("edge", axis=axis, rank=rank, after=after)}
        if groups is not None:
            yield Line(**ends, colour="ink", width=9)
        yield Line(**ends, colour=AXIS_KINDS[axis], width=2 if groups is None else 6)


def _rank(rank: int, solid: _Solid, chosen: int | None, groups: Mapping[str, list[int]]) -> Iterator[Rect | Label]:
    axis = "chosen" if rank == chosen else next((name for name, group in groups.items() if rank in group), "")
    x, y = solid.at[rank]
    box = Rect(x=x - solid.wide / 2, y=y - solid.high / 2, width=solid.wide, height=solid.high, radius=5)
    yield from card(box, rank, {name: solid.mesh.coordinates(rank)[name] for name in PLACES}, axis)


def _words(axes: Iterable[str], mesh: Mesh, rank: int | None, groups: Mapping) -> Iterator[Rect | Label]:
    """What each axis cuts and sends, and whom the chosen rank meets on it."""
    y = _TOP
    for axis in axes:
        yield Rect(x=_WORDS - 24, y=y - 7, width=16, height=14, radius=2, **axis_look(axis))
        yield Label(x=_WORDS, y=y, text=say(f"{axis}.head", size=getattr(mesh, axis)), size=12, bold=True)
        met = [say("group", rank=rank, ranks=members(groups[axis]))] if axis in groups else []
        for line in (say(f"{axis}.cuts"), say(f"{axis}.sends"), *met):
            y += _LINE
            yield Label(x=_WORDS, y=y, text=line, size=11)
        y += 2 * _LINE
