"""A device mesh on its nodes: which ranks one rank shares each axis with, and which of those groups cross nodes.

Ranks lie as in torch's `init_device_mesh`: row by row, so that the last axis varies fastest and its groups are
neighbours. Nodes hold neighbouring ranks, as torchrun numbers them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from helpers.draw.palette import PAINTS
from helpers.draw.scene import WIDTH, Label, Rect, Scene, text_width

AXIS_KINDS = ("buffers", "gradients", "activations", "optimizer", "communication", "other")
_MOST_RANKS = 512
_SIDE, _PAD, _GAP, _BETWEEN, _NODE_TITLE, _LINE = 14.0, 10.0, 6.0, 16.0, 22.0, 22.0


def mesh_coordinates(axes: Mapping[str, int], rank: int) -> dict[str, int]:
    """The place of a rank along each axis."""
    place = {}
    for name, size in reversed(axes.items()):
        rank, place[name] = divmod(rank, size)
    return {name: place[name] for name in axes}


def mesh_group(axes: Mapping[str, int], rank: int, axis: str) -> list[int]:
    """The ranks that differ from `rank` along `axis` only, and itself: its process group along that axis."""
    names = list(axes)
    stride = math.prod(axes[name] for name in names[names.index(axis) + 1 :])
    first = rank - mesh_coordinates(axes, rank)[axis] * stride
    return [first + number * stride for number in range(axes[axis])]


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """columns: boxes beside each other in a node; nodes_across: frames beside each other; box sizes in pixels."""

    world_size: int
    gpus_per_node: int
    columns: int
    nodes_across: int
    box: float
    box_height: float
    top: float

    @property
    def node_width(self) -> float:
        return self.columns * (self.box + _GAP) - _GAP + 2 * _PAD

    @property
    def node_height(self) -> float:
        rows = -(-self.gpus_per_node // self.columns)
        return rows * (self.box_height + _GAP) - _GAP + 2 * _PAD + _NODE_TITLE

    @property
    def has_places(self) -> bool:
        """Whether the boxes are large enough for coordinates."""
        return self.box_height > 30

    @property
    def num_nodes(self) -> int:
        return -(-self.world_size // self.gpus_per_node)

    @property
    def bottom(self) -> float:
        rows = -(-self.num_nodes // self.nodes_across)
        return self.top + rows * (self.node_height + _BETWEEN)

    def corner(self, node: int) -> tuple[float, float]:
        row, column = divmod(node, self.nodes_across)
        return _SIDE + column * (self.node_width + _BETWEEN), self.top + row * (self.node_height + _BETWEEN)

    def box_of(self, rank: int, **look: object) -> Rect:
        node, place = divmod(rank, self.gpus_per_node)
        row, column = divmod(place, self.columns)
        left, top = self.corner(node)
        x = left + _PAD + column * (self.box + _GAP)
        y = top + _NODE_TITLE + _PAD + row * (self.box_height + _GAP)
        return Rect(x=x, y=y, width=self.box, height=self.box_height, radius=4, **look)


def mesh_scene(
    axes: Mapping[str, int],
    *,
    gpus_per_node: int = 8,
    rank: int | None = 0,
    title: str = "",
    width: float = WIDTH,
) -> Scene:
    """A Scene of a mesh such as {"pp": 2, "dp": 2, "tp": 4}: nodes as frames, ranks as boxes with their coordinates.

    The group of `rank` along each axis has the colour and texture of that axis; below stands which ranks it holds and
    whether it stays inside a node. Without a `rank` no group is marked. ValueError for no axis, more than six, a size
    below 1, a rank outside the mesh, or more than 512 ranks.
    """
    _check(axes, gpus_per_node, rank)
    layout = _layout(axes, gpus_per_node, width)
    title = title or "Device mesh: " + " × ".join(f"{name} {size}" for name, size in axes.items())
    caption = f"Each rank with its place ({', '.join(axes)})" if layout.has_places else "Each rank by its number"
    items: list[Rect | Label] = [Label(x=_SIDE, y=20, text=title, size=14, bold=True)]
    items.append(Label(x=_SIDE, y=42, text=caption, size=12, colour="muted"))
    for node in range(layout.num_nodes):
        items += _node(node, layout)
    groups = {} if rank is None else {name: mesh_group(axes, rank, name) for name in axes}
    shared = {member: name for name, group in groups.items() for member in group if member != rank}
    for member in range(layout.world_size):
        items += _rank(member, axes, layout, shared.get(member), member == rank)
    items += _legend(axes, rank, groups, layout)
    height = layout.bottom + 4 + len(groups) * _LINE
    return Scene(width=width, height=height, title=title, summary=_summary(axes, rank, groups, layout), items=items)


def _check(axes: Mapping[str, int], gpus_per_node: int, rank: int | None) -> None:
    if not 1 <= len(axes) <= len(AXIS_KINDS):
        raise ValueError(f"the mesh has {len(axes)} axes; give 1 to {len(AXIS_KINDS)}, such as {{'dp': 2, 'tp': 4}}")
    for name, size in {**axes, "gpus_per_node": gpus_per_node}.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"{name} is {size!r}, but it must be a whole number of at least 1")
    world_size = math.prod(axes.values())
    if world_size > _MOST_RANKS:
        raise ValueError(f"the mesh has {world_size} ranks; a picture holds {_MOST_RANKS}, so draw a smaller one")
    if rank is not None and not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not in the mesh, whose ranks are 0 to {world_size - 1}")


def _layout(axes: Mapping[str, int], gpus_per_node: int, width: float) -> _Layout:
    """Rows of four in a node, or of up to eight where the last axis is longer: its groups lie in rows."""
    world_size, last = math.prod(axes.values()), list(axes.values())[-1]
    gpus_per_node = min(gpus_per_node, world_size)
    columns = 4 if last <= 4 and gpus_per_node % 4 == 0 else min(gpus_per_node, 8)
    words = max(text_width(_place(axes, member), 10) for member in (0, world_size - 1)) + 8
    box, height = (max(70.0, words), 38.0) if world_size <= 64 else (34.0, 24.0)
    room = width - 2 * _SIDE + _BETWEEN
    across = max(1, int(room / (columns * (box + _GAP) - _GAP + 2 * _PAD + _BETWEEN)))
    across = min(across, -(-world_size // gpus_per_node))
    widest = (room / across - _BETWEEN - 2 * _PAD + _GAP) / columns - _GAP
    return _Layout(
        world_size=world_size,
        gpus_per_node=gpus_per_node,
        columns=columns,
        nodes_across=across,
        box=min(1.3 * box, widest),
        box_height=height,
        top=60.0,
    )


def _place(axes: Mapping[str, int], rank: int) -> str:
    """The coordinates alone, in the order of the axes."""
    return ", ".join(map(str, mesh_coordinates(axes, rank).values()))


def _words(axes: Mapping[str, int], rank: int) -> str:
    return ", ".join(f"{name} {place}" for name, place in mesh_coordinates(axes, rank).items())


def _node(node: int, layout: _Layout) -> Iterator[Rect | Label]:
    x, y = layout.corner(node)
    yield Rect(x=x, y=y, width=layout.node_width, height=layout.node_height, radius=8, fill="panel", stroke="rule")
    yield Label(x=x + _PAD, y=y + 15, text=f"node {node}", size=11, bold=True, colour="muted")


def _look(axes: Mapping[str, int], axis: str) -> dict[str, str]:
    kind = AXIS_KINDS[list(axes).index(axis)]
    return {"fill": kind, "texture": PAINTS[kind].texture}


def _rank(
    rank: int, axes: Mapping[str, int], layout: _Layout, axis: str | None, is_chosen: bool
) -> Iterator[Rect | Label]:
    chosen = {"fill": "parameters", "stroke": "ink", "stroke_width": 2.5}
    look = chosen if is_chosen else _look(axes, axis) if axis else {"fill": "surface", "stroke": "rule"}
    box = layout.box_of(rank, tooltip=f"rank {rank}: {_words(axes, rank)}", **look)
    yield box
    x, y, on = box.x + box.width / 2, box.y + box.height / 2, look["fill"] if is_chosen or axis else ""
    text, size = (f"rank {rank}", 12.0) if layout.has_places else (str(rank), 11.0)
    yield Label(x=x, y=y - (8 if layout.has_places else 0), text=text, size=size, anchor="middle", on=on)
    if layout.has_places:
        yield Label(x=x, y=y + 8, text=_place(axes, rank), size=10, anchor="middle", on=on)


def _nodes(group: list[int], layout: _Layout) -> str:
    nodes = sorted({member // layout.gpus_per_node for member in group})
    return f"inside node {nodes[0]}" if len(nodes) == 1 else f"across {len(nodes)} nodes"


def _members(group: list[int]) -> str:
    shown = group if len(group) <= 10 else [*group[:4], "…", group[-1]]
    return ", ".join(map(str, shown))


def _legend(axes: Mapping[str, int], rank: int | None, groups: dict, layout: _Layout) -> Iterator[Rect | Label]:
    for number, (name, group) in enumerate(groups.items()):
        y = layout.bottom + 4 + number * _LINE
        yield Rect(x=_SIDE, y=y - 6, width=18, height=12, radius=2, **_look(axes, name))
        text = f"{name} group of rank {rank}: {_members(group)}, {_nodes(group, layout)}"
        yield Label(x=_SIDE + 28, y=y, text=text, size=12)


def _summary(axes: Mapping[str, int], rank: int | None, groups: dict, layout: _Layout) -> str:
    sizes = ", ".join(f"{name} {size}" for name, size in axes.items())
    first = f"{layout.world_size} ranks on {layout.num_nodes} nodes of {layout.gpus_per_node}; axes {sizes}."
    sentences = [f"Rank {rank} shares {name} with {_members(g)}, {_nodes(g, layout)}." for name, g in groups.items()]
    return " ".join([first, *sentences])
