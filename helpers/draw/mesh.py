"""A device mesh on its nodes: which ranks one rank shares each axis with, and which of those groups cross nodes.

Ranks are numbered as `helpers.specs.mesh` does. Nodes hold neighbouring ranks, as torchrun numbers them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from helpers.draw.palette import kind_style
from helpers.draw.scene import WIDTH, Label, Rect, Scene, text_width
from helpers.specs.mesh import Mesh

AXIS_KINDS = {"pp": "buffers", "dp": "gradients", "cp": "optimizer", "tp": "activations"}
_MOST_RANKS = 512
_SIDE, _PAD, _GAP, _BETWEEN, _NODE_TITLE, _LINE = 14.0, 10.0, 6.0, 16.0, 22.0, 22.0


@dataclass(frozen=True, kw_only=True)
class NodeLayout:
    """columns: boxes beside each other in a node; nodes_across: frames beside each other; all sizes in pixels."""

    world_size: int
    gpus_per_node: int
    columns: int
    nodes_across: int
    box: float
    box_height: float
    top: float
    pad: float = _PAD
    gap: float = _GAP
    between: float = _BETWEEN
    side: float = _SIDE
    title: float = _NODE_TITLE
    font: float = 11.0

    @property
    def node_width(self) -> float:
        return self.columns * (self.box + self.gap) - self.gap + 2 * self.pad

    @property
    def node_height(self) -> float:
        rows = -(-self.gpus_per_node // self.columns)
        return rows * (self.box_height + self.gap) - self.gap + 2 * self.pad + self.title

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
        return self.top + rows * (self.node_height + self.between)

    def corner(self, node: int) -> tuple[float, float]:
        row, column = divmod(node, self.nodes_across)
        return self.side + column * (self.node_width + self.between), self.top + row * (self.node_height + self.between)

    def box_of(self, rank: int, **kind_style: object) -> Rect:
        node, place = divmod(rank, self.gpus_per_node)
        row, column = divmod(place, self.columns)
        left, top = self.corner(node)
        x = left + self.pad + column * (self.box + self.gap)
        y = top + self.title + self.pad + row * (self.box_height + self.gap)
        return Rect(x=x, y=y, width=self.box, height=self.box_height, radius=4, **kind_style)


def mesh_scene(
    mesh: Mesh,
    *,
    gpus_per_node: int = 8,
    rank: int | None = 0,
    title: str = "",
    width: float = WIDTH,
) -> Scene:
    """A Scene of a mesh such as Mesh(pp=2, dp=2, tp=4): nodes as frames, ranks as boxes with their coordinates.

    The group of `rank` along each axis has the colour and texture of that axis; below stands which ranks it holds and
    whether it stays inside a node. Without a `rank` no group is marked. Axes of size 1 are left out.
    ValueError for a node without GPUs, a rank outside the mesh, or more than 512 ranks.
    """
    _check(mesh, gpus_per_node, rank)
    axes = {name: size for name in AXIS_KINDS if (size := getattr(mesh, name)) > 1} or {"dp": 1}
    layout = _layout(mesh, axes, gpus_per_node, width)
    title = title or "Device mesh: " + " × ".join(f"{name} {size}" for name, size in axes.items())
    caption = f"Each rank with its place ({', '.join(axes)})" if layout.has_places else "Each rank by its number"
    items: list[Rect | Label] = [Label(x=_SIDE, y=20, text=title, size=14, bold=True)]
    items.append(Label(x=_SIDE, y=42, text=caption, size=12, colour="muted"))
    for node in range(layout.num_nodes):
        items += node_frame(node, layout, f"node {node}")
    groups = {} if rank is None else {name: mesh.ranks_along(name, rank) for name in axes}
    shared = {member: name for name, group in groups.items() for member in group if member != rank}
    for member in range(layout.world_size):
        items += _rank(member, _coordinates(mesh, axes, member), layout, shared.get(member), member == rank)
    items += _legend(rank, groups, layout)
    height = layout.bottom + 4 + len(groups) * _LINE
    return Scene(width=width, height=height, title=title, summary=_summary(axes, rank, groups, layout), items=items)


def _check(mesh: Mesh, gpus_per_node: int, rank: int | None) -> None:
    if isinstance(gpus_per_node, bool) or not isinstance(gpus_per_node, int) or gpus_per_node < 1:
        raise ValueError(f"gpus_per_node is {gpus_per_node!r}, but it must be a whole number of at least 1")
    if mesh.world_size > _MOST_RANKS:
        raise ValueError(f"the mesh has {mesh.world_size} ranks; a picture holds {_MOST_RANKS}, so draw a smaller one")
    if rank is not None:
        mesh.coordinates(rank)  # ValueError where it is not there


def _coordinates(mesh: Mesh, axes: Iterable[str], rank: int) -> dict[str, int]:
    place = mesh.coordinates(rank)
    return {name: place[name] for name in axes}


def _layout(mesh: Mesh, axes: dict[str, int], gpus_per_node: int, width: float) -> NodeLayout:
    """Rows of four in a node, or of up to eight where the last axis is longer: its groups lie in rows."""
    world_size, last = mesh.world_size, list(axes.values())[-1]
    gpus_per_node = min(gpus_per_node, world_size)
    columns = 4 if last <= 4 and gpus_per_node % 4 == 0 else min(gpus_per_node, 8)
    words = max(text_width(_place(_coordinates(mesh, axes, member)), 10) for member in (0, world_size - 1)) + 8
    box, height = (max(70.0, words), 38.0) if world_size <= 64 else (34.0, 24.0)
    room = width - 2 * _SIDE + _BETWEEN
    across = max(1, int(room / (columns * (box + _GAP) - _GAP + 2 * _PAD + _BETWEEN)))
    across = min(across, -(-world_size // gpus_per_node))
    widest = (room / across - _BETWEEN - 2 * _PAD + _GAP) / columns - _GAP
    return NodeLayout(
        world_size=world_size,
        gpus_per_node=gpus_per_node,
        columns=columns,
        nodes_across=across,
        box=min(1.3 * box, widest),
        box_height=height,
        top=60.0,
    )


def _place(coordinates: dict[str, int]) -> str:
    """The coordinates alone, in the order of the axes."""
    return ", ".join(map(str, coordinates.values()))


def node_frame(node: int, layout: NodeLayout, name: str) -> Iterator[Rect | Label]:
    x, y = layout.corner(node)
    yield Rect(x=x, y=y, width=layout.node_width, height=layout.node_height, radius=8, fill="panel", stroke="rule")
    x, y = x + max(4.0, layout.pad), y + layout.title - 7
    yield Label(x=x, y=y, text=name, size=layout.font, bold=True, colour="muted")


def axis_look(axis: str) -> dict[str, str]:
    """Fill and texture of an axis, the same in every picture."""
    return kind_style(AXIS_KINDS[axis])


def _rank(
    rank: int, place: dict[str, int], layout: NodeLayout, axis: str | None, is_chosen: bool
) -> Iterator[Rect | Label]:
    chosen = {"fill": "parameters", "stroke": "ink", "stroke_width": 2.5}
    kind_style = chosen if is_chosen else axis_look(axis) if axis else {"fill": "surface", "stroke": "rule"}
    words = ", ".join(f"{name} {number}" for name, number in place.items())
    box = layout.box_of(rank, tooltip=f"rank {rank}: {words}", **kind_style)
    yield box
    x, y, on = box.x + box.width / 2, box.y + box.height / 2, kind_style["fill"] if is_chosen or axis else ""
    text, size = (f"rank {rank}", 12.0) if layout.has_places else (str(rank), 11.0)
    yield Label(x=x, y=y - (8 if layout.has_places else 0), text=text, size=size, anchor="middle", on=on)
    if layout.has_places:
        yield Label(x=x, y=y + 8, text=_place(place), size=10, anchor="middle", on=on)


def _nodes(group: list[int], layout: NodeLayout) -> str:
    nodes = sorted({member // layout.gpus_per_node for member in group})
    return f"inside node {nodes[0]}" if len(nodes) == 1 else f"across {len(nodes)} nodes"


def members(group: list[int], most: int = 10) -> str:
    """The ranks of a group; of more than `most` the first four and the last."""
    shown = group if len(group) <= most else [*group[:4], "…", group[-1]]
    return ", ".join(map(str, shown))


def _legend(rank: int | None, groups: dict, layout: NodeLayout) -> Iterator[Rect | Label]:
    for number, (name, group) in enumerate(groups.items()):
        y = layout.bottom + 4 + number * _LINE
        yield Rect(x=_SIDE, y=y - 6, width=18, height=12, radius=2, **axis_look(name))
        text = f"{name} group of rank {rank}: {members(group)}, {_nodes(group, layout)}"
        yield Label(x=_SIDE + 28, y=y, text=text, size=12)


def _summary(axes: dict[str, int], rank: int | None, groups: dict, layout: NodeLayout) -> str:
    sizes = ", ".join(f"{name} {size}" for name, size in axes.items())
    first = f"{layout.world_size} ranks on {layout.num_nodes} nodes of {layout.gpus_per_node}; axes {sizes}."
    sentences = [f"Rank {rank} shares {name} with {members(g)}, {_nodes(g, layout)}." for name, g in groups.items()]
    return " ".join([first, *sentences])
