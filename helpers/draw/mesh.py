"""Draws a device mesh: ranks on their nodes (mesh_scene), or pp x dp x tp as a solid with three axes (cube_scene).

A mesh arranges ranks along axes: dp (replicas), pp (pipeline stages), cp (parts of a sequence) and tp (shards of a
layer). The group of a rank on an axis are the ranks that differ from it on that axis alone. Both scenes show the groups
of one rank, the chosen one, each in the colour of its axis; such ranks are "lit". From one rank to the next, the
coordinate on tp changes first, then those on cp, dp and pp. A node holds neighbouring ranks, as torchrun numbers them.
Chapters 07, 09 and 11 use the scenes; `mesh_plan.py` draws its nodes and cards with `NodeLayout` and `card`.

A Scene is a picture as plain data: rectangles (Rect), labels and lines, in pixels from the top left corner. Plain
numbers in the code are such pixels. A kind of the palette, such as "forward", stands for a colour and a texture.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from helpers.draw.palette import kind_style
from helpers.draw.scene import (
    MARGIN,
    WIDTH,
    Label,
    Rect,
    Scene,
    SceneItem,
    centred_label,
    text_width,
    title_label,
)
from helpers.specs.mesh import Mesh

# Each axis borrows the colour and texture of a kind of the palette, whose name means nothing here.
AXIS_KINDS = {"pp": "buffers", "dp": "gradients", "cp": "optimizer", "tp": "activations"}
EXPERT_KINDS = {"edp": "gradients", "ep": "communication"}  # the two axes into which dp x cp is divided for experts
CHOSEN = {"fill": "parameters", "stroke": "ink", "stroke_width": 2.5}  # the style of the rank whose groups are lit
_MOST_RANKS = 512  # of mesh_scene; the boxes of more ranks could not be read
_LINE = 22.0  # pixels from one line of the legend to the next
# Pixels of a node in mesh_scene: padding around its boxes, between two boxes, between two nodes, and its title.
_PAD, _GAP, _BETWEEN, _NODE_TITLE = 10.0, 6.0, 16.0, 22.0

# Pixels of a card: the strip at its foot that carries the axis's texture, from line to line, and letters of its name
# and of a small text. From a height of _TALL on it has a line per axis; below _LOW everything on it is smaller.
_STRIP, _LINE_PITCH, _NAME, _SMALL, _TALL, _LOW = 7.0, 15.0, 13.0, 9.7, 60.0, 31.0


def axis_style(axis: str) -> dict[str, str]:
    """Fill and texture of an axis of the mesh, the same in every picture."""
    return kind_style((AXIS_KINDS | EXPERT_KINDS)[axis])


def members_text(group: list[int], most: int = 10) -> str:
    """The ranks of a group as text; of more than `most` the first four and the last."""
    shown = group if len(group) <= most else [*group[:4], "…", group[-1]]
    return ", ".join(map(str, shown))


# -- nodes -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class NodeLayout:
    """Where nodes and the boxes of their ranks lie; all sizes in pixels.

    `columns` boxes stand side by side in a node, and `nodes_across` nodes side by side in the picture. `box` and
    `box_height` are the size of a rank's box, `pad` and `gap` the space around and between boxes, `between` the space
    between nodes, `side` the left margin, `top` the upper edge of the first node, `title` the height of a node's name,
    and `font` the size of its letters.
    """

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
    side: float = MARGIN
    title: float = _NODE_TITLE
    font: float = 11.0

    @property
    def node_width(self) -> float:
        return self.columns * (self.box + self.gap) - self.gap + 2 * self.pad

    @property
    def node_height(self) -> float:
        rows = -(-self.gpus_per_node // self.columns)  # rounded up
        return rows * (self.box_height + self.gap) - self.gap + 2 * self.pad + self.title

    @property
    def has_coordinates(self) -> bool:
        """Whether the boxes are large enough to show the rank's coordinates."""
        return self.box_height > 30

    @property
    def num_nodes(self) -> int:
        return -(-self.world_size // self.gpus_per_node)  # rounded up

    @property
    def bottom(self) -> float:
        """Where the last row of nodes ends, with the space below it."""
        rows = -(-self.num_nodes // self.nodes_across)  # rounded up
        return self.top + rows * (self.node_height + self.between)

    def corner(self, node: int) -> tuple[float, float]:
        """The top left corner of a node."""
        row, column = divmod(node, self.nodes_across)
        return self.side + column * (self.node_width + self.between), self.top + row * (self.node_height + self.between)

    def box_of(self, rank: int, **style: object) -> Rect:
        """The box of a rank."""
        node, position = divmod(rank, self.gpus_per_node)
        row, column = divmod(position, self.columns)
        left, top = self.corner(node)
        x = left + self.pad + column * (self.box + self.gap)
        y = top + self.title + self.pad + row * (self.box_height + self.gap)
        return Rect(x=x, y=y, width=self.box, height=self.box_height, radius=4, **style)


def mesh_scene(
    mesh: Mesh, *, gpus_per_node: int = 8, rank: int | None = 0, title: str = "", names: Iterable[str] = AXIS_KINDS
) -> Scene:
    """A Scene of a mesh such as Mesh(pp=2, dp=2, tp=4): nodes as frames, ranks as boxes with their coordinates.

    The group of `rank` along each axis has the colour and texture of that axis; the text below says which ranks it
    holds and whether it stays inside a node. Without a `rank` no group is marked. Axes of size 1 are left out.
    names: the axes, in the order of a rank's coordinates, such as edp, ep and tp for experts.
    Raises ValueError for a node without GPUs, a rank outside the mesh, or more than 512 ranks.
    """
    _check(mesh, gpus_per_node, rank)
    # The axes that have more than one rank, and their sizes. A mesh of one rank is drawn as dp 1.
    axes = {name: getattr(mesh, name) for name in names if getattr(mesh, name) > 1} or {"dp": 1}
    layout = _node_layout(mesh, axes, gpus_per_node)
    title = title or "Device mesh: " + " × ".join(f"{name} {size}" for name, size in axes.items())
    caption = f"Each rank with its place ({', '.join(axes)})" if layout.has_coordinates else "Each rank by its number"
    items: list[SceneItem] = [title_label(title)]
    items.append(Label(x=MARGIN, y=42, text=caption, size=12, colour="muted"))
    for node in range(layout.num_nodes):
        items += node_frame(node, layout, f"node {node}")
    groups = {} if rank is None else {name: mesh.ranks_along(name, rank) for name in axes}
    # For each rank of a group the name of its axis; the chosen rank, which is in every group, gets "chosen". Without a
    # chosen rank the key is None, which no rank equals.
    lit_axis = {member: name for name, group in groups.items() for member in group} | {rank: "chosen"}
    for member in range(layout.world_size):
        coordinates = _coordinates(mesh, axes, member) if layout.has_coordinates else {}
        items += card(layout.box_of(member), member, coordinates, lit_axis.get(member, ""))
    items += _legend(rank, groups, layout)
    height, summary = layout.bottom + 4 + len(groups) * _LINE, _mesh_summary(axes, rank, groups, layout)
    return Scene(height=height, title=title, summary=summary, items=items)


def _check(mesh: Mesh, gpus_per_node: int, rank: int | None) -> None:
    """Raises ValueError for what cannot be drawn."""
    if isinstance(gpus_per_node, bool) or not isinstance(gpus_per_node, int) or gpus_per_node < 1:
        raise ValueError(f"gpus_per_node is {gpus_per_node!r}, but it must be a whole number of at least 1")
    if mesh.world_size > _MOST_RANKS:
        raise ValueError(f"the mesh has {mesh.world_size} ranks; a picture holds {_MOST_RANKS}, so draw a smaller one")
    if rank is not None:
        mesh.coordinates(rank)  # raises ValueError where the mesh has no such rank


def _coordinates(mesh: Mesh, axes: Iterable[str], rank: int) -> dict[str, int]:
    """The place of a rank on each of these axes, in their order."""
    coordinates = mesh.coordinates(rank)
    if "edp" in axes:
        coordinates["edp"] = mesh.ranks_along("edp", rank).index(rank)
    return {name: coordinates[name] for name in axes}


def _node_layout(mesh: Mesh, axes: dict[str, int], gpus_per_node: int) -> NodeLayout:
    """Four boxes per row of a node, or up to eight where the last axis is longer, so that its groups lie in rows."""
    world_size, last_size = mesh.world_size, list(axes.values())[-1]
    gpus_per_node = min(gpus_per_node, world_size)
    columns = 4 if last_size <= 4 and gpus_per_node % 4 == 0 else min(gpus_per_node, 8)
    # The last rank has the longest coordinates. From 65 ranks on the boxes are too small for coordinates.
    texts = (_coordinates_text(_coordinates(mesh, axes, member)) for member in (0, world_size - 1))
    needed = max(text_width(text, 10) for text in texts) + 8
    box, height = (max(70.0, needed), 38.0) if world_size <= 64 else (34.0, 24.0)
    available = WIDTH - 2 * MARGIN + _BETWEEN
    across = max(1, int(available / (columns * (box + _GAP) - _GAP + 2 * _PAD + _BETWEEN)))
    across = min(across, -(-world_size // gpus_per_node))  # the number of nodes, rounded up
    widest = (available / across - _BETWEEN - 2 * _PAD + _GAP) / columns - _GAP  # with which the nodes fill the width
    counts = {"world_size": world_size, "gpus_per_node": gpus_per_node, "columns": columns, "nodes_across": across}
    # A box may be up to 30 % wider than it must be, in order to fill the width.
    return NodeLayout(**counts, box=min(1.3 * box, widest), box_height=height, top=60.0)


def _coordinates_text(coordinates: dict[str, int]) -> str:
    """The numbers alone, in the order of the axes."""
    return ", ".join(map(str, coordinates.values()))


def node_frame(node: int, layout: NodeLayout, name: str) -> Iterator[Rect | Label]:
    """The frame of a node, with its name."""
    x, y = layout.corner(node)
    yield Rect(x=x, y=y, width=layout.node_width, height=layout.node_height, radius=8, fill="panel", stroke="rule")
    x, y = x + max(4.0, layout.pad), y + layout.title - 7
    yield Label(x=x, y=y, text=name, size=layout.font, bold=True, colour="muted")


def _rank_style(axis: str) -> dict[str, Any]:
    """How a rank looks that shares the group of this axis with the chosen rank; "chosen" is that rank, "" no group."""
    if not axis:
        return {"fill": "surface", "stroke": "rule"}
    return CHOSEN if axis == "chosen" else axis_style(axis)


def _nodes_text(group: list[int], layout: NodeLayout) -> str:
    """Whether a group stays inside one node, or over how many nodes it extends."""
    nodes = sorted({member // layout.gpus_per_node for member in group})
    return f"inside node {nodes[0]}" if len(nodes) == 1 else f"across {len(nodes)} nodes"


def _legend(rank: int | None, groups: dict, layout: NodeLayout) -> Iterator[Rect | Label]:
    """Below the nodes a line for each group of the chosen rank: its members, and whether it stays inside a node."""
    for number, (name, group) in enumerate(groups.items()):
        y = layout.bottom + 4 + number * _LINE
        yield Rect(x=MARGIN, y=y - 6, width=18, height=12, radius=2, **axis_style(name))
        text = f"{name} group of rank {rank}: {members_text(group)}, {_nodes_text(group, layout)}"
        yield Label(x=MARGIN + 28, y=y, text=text, size=12)


def _mesh_summary(axes: dict[str, int], rank: int | None, groups: dict, layout: NodeLayout) -> str:
    """What the picture shows, for readers who cannot see it."""
    sizes = ", ".join(f"{name} {size}" for name, size in axes.items())
    first = f"{layout.world_size} ranks on {layout.num_nodes} nodes of {layout.gpus_per_node}; axes {sizes}."
    sentences = [
        f"Rank {rank} shares {name} with {members_text(group)}, {_nodes_text(group, layout)}."
        for name, group in groups.items()
    ]
    return " ".join([first, *sentences])


# -- cards -----------------------------------------------------------------------------------------------------------
def card(
    box: Rect, rank: int, coordinates: Mapping[str, int], axis: str = "", *, size: float = 0.0, has_lines: bool = True
) -> Iterator[Rect | Label]:
    """A rank as a card with its coordinates: a line for each axis where `box` is tall enough, else all in one line.

    `axis` is the one whose group it shares with the chosen rank, "chosen" for that rank itself, and "" for all others.
    `size` is that of the letters; 0 makes them as large as there is room for. has_lines=False shows the rank alone.
    """
    is_tall, is_low = box.height >= _TALL, box.height < _LOW
    size = size or (11 if is_tall else _SMALL)
    strip, pitch = (_STRIP - 3, _LINE_PITCH - 2) if is_low else (_STRIP, _LINE_PITCH)
    style = _rank_style(axis)
    lines = {name: f"{name} {number}" for name, number in coordinates.items()}  # axis -> its line
    box = replace(box, tooltip=f"rank {rank}: {', '.join(lines.values())}", **(style | {"texture": ""}))
    yield box
    if style.get("texture"):  # only on a strip below the text, which stays easy to read
        yield replace(box, y=box.y + box.height - strip, height=strip, texture=style["texture"], tooltip="")
    x, on = box.x + box.width / 2, style["fill"] if axis else ""  # on: the fill on which the texts must be legible
    if not is_tall or any(text_width(line, size, bold=True) > box.width for line in lines.values()):  # one line then
        line = _one_line(coordinates, box.width - 2, size) if has_lines else ""
        lines = {"": line} if line else {}  # "": this line belongs to no single axis, so it is never bold
    # The y of the name. Name and lines together lie in the middle of what the strip leaves of the card.
    top = box.y + (box.height - strip) / 2 - pitch * len(lines) / 2 + (0 if is_low else 2)
    name = f"rank {rank}" if text_width(f"rank {rank}", _NAME, bold=True) < box.width - 4 else str(rank)
    yield centred_label(x, top, name, _NAME, bold=True, on=on)
    for number, (line_axis, line) in enumerate(lines.items(), 1):
        is_lit = bool(axis) and line_axis == axis  # the line of the axis whose group the rank shares is bold
        yield centred_label(x, top + pitch * number, line, size, on=on, bold=is_lit)


def _one_line(coordinates: Mapping[str, int], available: float, size: float) -> str:
    """All coordinates in one line, with the axes' names if they fit, else without; "" where neither fits."""
    named = "  ".join(f"{name} {number}" for name, number in coordinates.items())
    numbers = (separator.join(map(str, coordinates.values())) for separator in (", ", ","))
    return next((text for text in (named, *numbers) if text_width(text, size) < available), "")
