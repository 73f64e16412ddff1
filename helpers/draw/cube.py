"""A mesh of three axes as a solid: stages from left to right, parts of matrices downward, copies behind each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from helpers.draw.cards import card
from helpers.draw.mesh import AXIS_KINDS, axis_look, members
from helpers.draw.scene import WIDTH, Label, Line, Rect, Scene
from helpers.mesh import Mesh
from helpers.words import book

say = book("mesh").section("cube")
AXES = ("dp", "pp", "tp")
_CARD, _HIGH, _DEPTH, _RISE, _GAP = 104.0, 52.0, 124.0, 72.0, 24.0  # pixels at full size
_SIDE, _TOP, _PLANE = 26.0, 66.0, 12.0
_ROOM, _MOST_HIGH, _SMALLEST = 482.0, 440.0, 64.0
_WORDS, _LINE = 556.0, 18.0


@dataclass(frozen=True, kw_only=True)
class _Solid:
    """Where each rank stands. size: 1, or less where the mesh needs more room."""

    mesh: Mesh
    size: float

    @property
    def steps(self) -> dict[str, tuple[float, float]]:
        """Pixels to the next rank of each axis: no card hides another, however many copies stand behind."""
        behind = self.mesh.dp - 1
        across, down = behind * _DEPTH + _CARD + _GAP, behind * _RISE + _HIGH + _GAP
        return {
            "pp": (across * self.size, 0),
            "tp": (0, down * self.size),
            "dp": (_DEPTH * self.size, -_RISE * self.size),
        }

    @property
    def extent(self) -> tuple[float, float]:
        """Width and height of all cards together."""
        spans = [
            [(getattr(self.mesh, axis) - 1) * abs(step[way]) for axis, step in self.steps.items()] for way in (0, 1)
        ]
        return sum(spans[0]) + _CARD * self.size, sum(spans[1]) + _HIGH * self.size

    def middle(self, rank: int) -> tuple[float, float]:
        """Of a rank's card."""
        place, top = self.mesh.coordinates(rank), _TOP + (self.mesh.dp - 1) * _RISE * self.size
        x, y = (sum(place[axis] * step[way] for axis, step in self.steps.items()) for way in (0, 1))
        return _SIDE + _CARD * self.size / 2 + x, top + _HIGH * self.size / 2 + y


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
    behind_first = sorted(range(mesh.world_size), key=lambda each: -mesh.coordinates(each)["dp"])
    for copy in reversed(range(mesh.dp)):
        items += _sheet(copy, solid)
        items += _edges(
            [each for each in behind_first if mesh.coordinates(each)["dp"] == copy], solid, ["pp", "tp"], {}
        )
    items += _edges(behind_first, solid, ["dp"], {})
    items += _edges(behind_first, solid, axes, groups, lit=True)
    for each in behind_first:
        items += _rank(each, solid, rank, groups)
    words = list(_words(axes, mesh, rank, groups))
    items += words
    height = max(_TOP + solid.extent[1] + 2 * _PLANE, max(label.y for label in words) + 20 if words else 0)
    return Scene(width=WIDTH, height=height, title=title, summary=_summary(mesh, rank, groups), items=tuple(items))


def _solid(mesh: Mesh) -> _Solid:
    if mesh.cp * mesh.ep > 1:
        raise ValueError(f"cube_scene draws dp, pp and tp; the mesh has cp={mesh.cp}, ep={mesh.ep}: see mesh_scene")
    wide, high = _Solid(mesh=mesh, size=1.0).extent
    size = min(1.0, _ROOM / wide, _MOST_HIGH / high)
    if _CARD * size < _SMALLEST:
        raise ValueError(
            f"cube_scene has no room for dp {mesh.dp} × pp {mesh.pp} × tp {mesh.tp}; take a smaller mesh, or mesh_scene"
        )
    return _Solid(mesh=mesh, size=size)


def _sheet(copy: int, solid: _Solid) -> Iterator[Rect | Label]:
    """What a copy of the model stands on: what lies behind it looks pale."""
    mesh = solid.mesh
    x, y = solid.middle(mesh.rank_at(dp=copy))
    right, low = solid.middle(mesh.rank_at(dp=copy, pp=mesh.pp - 1, tp=mesh.tp - 1))
    half, high = _CARD * solid.size / 2 + _PLANE, _HIGH * solid.size / 2 + _PLANE
    frame = {"x": x - half, "y": y - high, "width": right - x + 2 * half, "height": low - y + 2 * high, "radius": 8}
    for fill, opacity in (("surface", 0.55), ("other", 0.12)):
        yield Rect(**frame, fill=fill, opacity=opacity)
    yield Rect(**frame, stroke="rule")
    if mesh.dp > 1:
        yield Label(x=right + half, y=y - high - 9, text=say("copy", copy=copy), size=11, anchor="end", colour="muted")


def _edges(
    ranks: list[int], solid: _Solid, axes: list[str], groups: dict[str, list[int]], lit: bool = False
) -> Iterator[Line]:
    """From these ranks to the next on each axis; `lit`: only those between two of the chosen rank's group, thick."""
    for rank, axis in product(ranks, axes):
        place = solid.mesh.coordinates(rank)
        if place[axis] + 1 == getattr(solid.mesh, axis):
            continue
        after = solid.mesh.rank_at(**{name: place[name] for name in AXES} | {axis: place[axis] + 1})
        (x1, y1), (x2, y2) = solid.middle(rank), solid.middle(after)
        ends = {"x1": x1, "y1": y1, "x2": x2, "y2": y2, "tooltip": say("edge", axis=axis, rank=rank, after=after)}
        if not lit:
            yield Line(**ends, colour=AXIS_KINDS[axis], width=2)
        elif {rank, after} <= set(groups.get(axis, ())):
            yield Line(**ends, colour="ink", width=9)
            yield Line(**ends, colour=AXIS_KINDS[axis], width=6)


def _rank(rank: int, solid: _Solid, chosen: int | None, groups: dict[str, list[int]]) -> Iterator[Rect | Label]:
    (x, y), wide, high = solid.middle(rank), _CARD * solid.size, _HIGH * solid.size
    axis = "chosen" if rank == chosen else next((name for name, group in groups.items() if rank in group), "")
    place = {name: solid.mesh.coordinates(rank)[name] for name in AXES}
    yield from card(Rect(x=x - wide / 2, y=y - high / 2, width=wide, height=high, radius=5), rank, place, axis)


def _words(axes: list[str], mesh: Mesh, rank: int | None, groups: dict) -> Iterator[Rect | Label]:
    """What each axis cuts and sends, and whom the chosen rank meets on it."""
    y = _TOP
    for axis in axes:
        yield Rect(x=_WORDS - 24, y=y - 7, width=16, height=14, radius=2, **axis_look(axis))
        head = say(f"{axis}.head", size=getattr(mesh, axis))
        yield Label(x=_WORDS, y=y, text=head, size=12, bold=True)
        lines = [say(f"{axis}.cuts"), say(f"{axis}.sends")]
        if axis in groups:
            lines.append(say("group", rank=rank, ranks=members(groups[axis])))
        for line in lines:
            y += _LINE
            yield Label(x=_WORDS, y=y, text=line, size=11)
        y += 2 * _LINE


def _summary(mesh: Mesh, rank: int | None, groups: dict[str, list[int]]) -> str:
    said = [say("shares", rank=rank, axis=axis, ranks=members(group)) for axis, group in groups.items()]
    return say("summary", ranks=mesh.world_size, dp=mesh.dp, pp=mesh.pp, tp=mesh.tp, said=said or [""])
