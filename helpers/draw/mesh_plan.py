"""Draws a parallelism plan on its machines: nodes and ranks, what one rank sends on each axis, and what it holds.

A plan divides the ranks along three axes: dp (replicas), pp (pipeline stages) and tp (shards of a layer). The mesh
explorer shows it; a click on a rank chooses that rank. A rank is drawn as a card, a box with its coordinates. Each part
keeps its place whatever the plan is, so that turning a dial changes what is seen and moves nothing else. A colour
stands for an axis, so memory is drawn in shades of grey. The picture is narrow: it fits beside JupyterLab's list of
files in a window of 1100 pixels, where its smallest letters still have 12 pixels.

A Scene is a picture as plain data: rectangles (Rect), labels and lines, in pixels from the top left corner. Plain
numbers in the code are such pixels. A kind of the palette, such as "forward", stands for a colour and a texture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from helpers.draw.mesh import NodeLayout, axis_style, card, members_text, node_frame
from helpers.draw.palette import kind_word
from helpers.draw.scene import Label, Line, Rect, Scene, SceneItem, text_width
from helpers.learner.words import book
from helpers.quantities.units import format_bytes
from helpers.records import MEMORY_KINDS, MemoryBreakdown
from helpers.specs.mesh import Mesh

words = book("mesh")  # what a reader sees, by name, in the learner's language: learner/words/mesh.yaml
MOST_RANKS = 64  # of the picture
WIDTH, _FONT, _SIDE = 640.0, 12.0, 8.0  # pixels: the picture, its letters, its margins
_TOP, _NODES_HEIGHT, _LINE = 46.0, 190.0, 20.0  # pixels: where the nodes begin, their height, from line to line
_TRAFFIC_TOP = _TOP + _NODES_HEIGHT + 18
_MEMORY_TOP = _TRAFFIC_TOP + 4 * _LINE + 10  # a line of headings, and one for each of the three axes
_HEIGHT = _MEMORY_TOP + 88
_LINK_LEFT, _BAR_LEFT, _BAR_END = 196.0, 424.0, 520.0  # pixels: columns of the traffic of each axis
_MOST_ACROSS = 16  # ranks side by side
_OPACITIES = dict(zip(MEMORY_KINDS, (0.9, 0.7, 0.52, 0.36, 0.22, 0.1), strict=True))  # of the ink, by kind of memory


@dataclass(frozen=True, kw_only=True)
class AxisUse:
    """What the chosen rank does on an axis: its group, the bytes that it sends per step, and two texts.

    `link` says which link the messages cross, and `words` stands behind the bar of the bytes.
    """

    group: Sequence[int]
    sent: float
    link: str
    words: str


def mesh_plan_scene(
    mesh: Mesh,
    uses: Mapping[str, AxisUse],
    memory_by_rank: Sequence[MemoryBreakdown],
    *,
    gpus_per_node: int,
    rank: int,
    limit: float,
    limit_name: str,
    title: str,
) -> Scene:
    """A Scene of `mesh`, seen from `rank`.

    `uses` maps each axis to what `rank` does on it, drawn in this order. `memory_by_rank` is what each rank holds, and
    `limit` the bytes of a GPU's memory, described by `limit_name`. Raises ValueError for more than 64 ranks, a rank
    that the mesh lacks, or other than one entry of `memory_by_rank` for each rank.
    """
    _check(mesh, memory_by_rank, rank)
    layout = _layout(mesh.world_size, gpus_per_node)
    items: list[SceneItem] = [Label(x=_SIDE, y=16, text=title, size=13, bold=True)]
    items.append(Label(x=_SIDE, y=34, text=words("places", axes=list(uses)), size=_FONT, colour="muted"))
    for node in range(layout.num_nodes):
        items += _node(node, layout)
    # For each rank of a group the name of its axis; the chosen rank, which is in every group, gets "chosen".
    lit_axis = {peer: axis for axis, use in uses.items() for peer in use.group} | {rank: "chosen"}
    for each, memory in enumerate(memory_by_rank):
        coordinates = {axis: mesh.coordinates(each)[axis] for axis in uses}
        items += _rank(layout.box_of(each), each, coordinates, lit_axis.get(each, ""), memory.total, limit)
    items += _traffic(rank, uses)
    memory_title = words("memory", rank=rank, held=format_bytes(memory_by_rank[rank].total), limit=limit_name)
    items += _memory(memory_by_rank[rank], limit, memory_title)
    return Scene(width=WIDTH, height=_HEIGHT, title=title, summary=_summary(rank, uses, memory_by_rank), items=items)


def _check(mesh: Mesh, memory_by_rank: Sequence[MemoryBreakdown], rank: int) -> None:
    """Raises ValueError for what cannot be drawn."""
    mesh.coordinates(rank)  # raises ValueError where the mesh has no such rank
    if mesh.world_size > MOST_RANKS:
        raise ValueError(words("too_many", dp=mesh.dp, pp=mesh.pp, tp=mesh.tp, ranks=mesh.world_size, most=MOST_RANKS))
    if len(memory_by_rank) != mesh.world_size:
        raise ValueError(
            f"mesh_plan_scene got {len(memory_by_rank)} breakdowns for {mesh.world_size} ranks; give one for each"
        )


def _layout(world_size: int, gpus_per_node: int) -> NodeLayout:
    """The nodes fill the same area of the picture in every plan: the more rows of nodes, the lower the cards.

    At most 16 cards stand side by side. A node of several GPUs has two rows of cards.
    """
    columns, num_nodes = max(1, gpus_per_node // 2), -(-world_size // gpus_per_node)  # -(-a // b) is a / b rounded up
    across = min(num_nodes, _MOST_ACROSS // columns)
    node_rows, gap, title = -(-num_nodes // across), 2.0, 14.0  # rounded up
    pad = 4.0 if across * columns <= 8 else 2.0 if across <= 8 else 1.0
    between = pad + 1
    # What the cards of one node have: the picture's size without the space around and between the nodes.
    cards_width = (WIDTH - 2 * _SIDE + between) / across - between - 2 * pad + gap
    cards_height = (_NODES_HEIGHT + between) / node_rows - between - 2 * pad - title
    gap_height, card_rows = (gap, 2) if gpus_per_node > 1 else (0.0, 1)
    counts = {"world_size": world_size, "gpus_per_node": gpus_per_node, "columns": columns, "nodes_across": across}
    box = {"box": min(150.0, cards_width / columns - gap), "box_height": (cards_height - gap_height) / card_rows}
    spaces = {"top": _TOP, "pad": pad, "gap": gap, "between": between, "side": _SIDE, "title": title}
    return NodeLayout(**counts, **box, **spaces, font=_FONT)


def _node(node: int, layout: NodeLayout) -> Iterator[Rect | Label]:
    """The frame of a node, and its GPUs that the plan does not use, as empty cards."""
    name = words("node", node=node)
    fits = text_width(name, _FONT, bold=True) < layout.node_width - 8
    yield from node_frame(node, layout, name if fits else str(node))
    first_gpu, end = node * layout.gpus_per_node, (node + 1) * layout.gpus_per_node
    for gpu in range(max(first_gpu, layout.world_size), end):
        yield layout.box_of(gpu, stroke="rule", tooltip=words("unused"))


def _rank(
    box: Rect, rank: int, coordinates: Mapping[str, int], axis: str, num_bytes: float, limit: float
) -> Iterator[Rect | Label]:
    """A rank's card with a strip at its foot that says how full its memory is; a Rect over both takes the clicks.

    axis: the one whose group the rank shares with the chosen rank, "chosen" for that rank itself, "" for all others.
    """
    strip_height = 7.0 if box.height > 50 else 4.0
    yield from card(replace(box, height=box.height - strip_height - 1), rank, coordinates, axis, size=_FONT)
    strip = {"x": box.x, "y": box.y + box.height - strip_height, "height": strip_height, "radius": 1}
    if num_bytes <= limit:
        yield Rect(width=box.width, fill="surface", stroke="rule", **strip)
        yield Rect(width=box.width * num_bytes / limit, fill="ink", opacity=0.7, **strip)
    else:
        # "sign" is the palette's orange: the memory is too small.
        yield Rect(width=box.width, fill="sign", stroke="ink", stroke_width=1.5, **strip)
    coordinates_text = ", ".join(f"{name} {number}" for name, number in coordinates.items())
    tooltip = words("card", rank=rank, place=coordinates_text, held=format_bytes(num_bytes))
    yield replace(box, tooltip=tooltip, pick=str(rank), is_picked=axis == "chosen")


def _traffic(rank: int, uses: Mapping[str, AxisUse]) -> Iterator[Rect | Label]:
    """A row for each axis: the members of the group, the link that it crosses, and what the rank sends."""
    for x, name in ((_SIDE, "groups"), (_LINK_LEFT, "crosses"), (_BAR_LEFT, "sends")):
        yield Label(x=x, y=_TRAFFIC_TOP, text=words(f"head.{name}", rank=rank), size=_FONT, bold=True)
    most = max(use.sent for use in uses.values()) or 1
    for number, (axis, use) in enumerate(uses.items(), 1):
        y = _TRAFFIC_TOP + number * _LINE
        yield Rect(x=_SIDE, y=y - 7, width=18, height=14, radius=2, **axis_style(axis))
        yield Label(x=_SIDE + 26, y=y, text=axis, size=_FONT, bold=True)
        if len(use.group) == 1:
            yield Label(x=_SIDE + 54, y=y, text=words("alone"), size=_FONT, colour="muted")
            continue
        yield Label(x=_SIDE + 54, y=y, text=members_text(list(use.group), most=6), size=_FONT)
        yield Label(x=_LINK_LEFT, y=y, text=use.link, size=_FONT)
        width = max(1.0, (_BAR_END - _BAR_LEFT) * use.sent / most)
        tooltip = words("sent", axis=axis, rank=rank, num_bytes=use.sent)
        yield Rect(x=_BAR_LEFT, y=y - 8, width=width, height=16, radius=2, tooltip=tooltip, **axis_style(axis))
        yield Label(x=_BAR_LEFT + width + 8, y=y, text=use.words, size=_FONT)


def _memory(memory: MemoryBreakdown, limit: float, title: str) -> Iterator[Rect | Label | Line]:
    """The parts of a rank's memory side by side on the axis of a GPU's memory, and below it each with its bytes."""
    yield Label(x=_SIDE, y=_MEMORY_TOP, text=title, size=_FONT, bold=True)
    scale, x, y = (WIDTH - 2 * _SIDE) / max(limit, memory.total), _SIDE, _MEMORY_TOP + 12
    yield Rect(x=x, y=y, width=limit * scale, height=24, fill="panel", stroke="rule")
    for number, (kind, opacity) in enumerate(_OPACITIES.items()):
        num_bytes = getattr(memory, kind)
        style = {"fill": "ink", "opacity": opacity}
        width, text = num_bytes * scale, words("part", kind=kind_word(kind), size=format_bytes(num_bytes))
        if width >= 0.5:
            yield Rect(x=x, y=y, width=max(0.5, width - 1), height=24, tooltip=text, **style)
        x += width
        left, low = _SIDE + number % 3 * 208, y + 38 + number // 3 * 20  # the legend has two rows of three entries
        yield Rect(x=left, y=low - 6, width=16, height=12, **style)
        yield Rect(x=left, y=low - 6, width=16, height=12, stroke="muted")
        yield Label(x=left + 24, y=low, text=text, size=_FONT)
    end = _SIDE + limit * scale
    if memory.total > limit:
        yield Rect(x=end, y=y - 2, width=x - end, height=28, stroke="ink", stroke_width=2.5)
    yield Line(x1=end, y1=y - 4, x2=end, y2=y + 28, colour="ink", width=2, dashed=True)


def _summary(rank: int, uses: Mapping[str, AxisUse], memory_by_rank: Sequence[MemoryBreakdown]) -> str:
    """What the picture shows, for readers who cannot see it."""
    sentences = [
        words("summary.axis", rank=rank, axis=axis, ranks=members_text(list(use.group)), link=use.link, sent=use.words)
        for axis, use in uses.items()
        if len(use.group) > 1
    ]
    held = format_bytes(memory_by_rank[rank].total)
    # A text cannot join an empty list, so without groups the list has an empty text.
    return words("summary.all", ranks=len(memory_by_rank), said=sentences or [""], rank=rank, held=held)
