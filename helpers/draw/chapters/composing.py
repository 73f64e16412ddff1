"""Draws what chapter 09 shows: a mesh as a solid with three axes (cube_scene), and a plan on its machines.

A plan divides the ranks along three axes: dp (replicas), pp (pipeline stages) and tp (shards of a layer). `cube_scene`
draws dp x pp x tp as a solid. `mesh_plan_scene` is the picture of the mesh explorer: nodes and ranks, what one rank
sends on each axis, and what it holds; a click on a rank chooses that rank. A rank is drawn as a card, a box with its
coordinates. Each part of the plan keeps its place, so that turning a dial changes what is seen and moves nothing else.
A colour stands for an axis, so memory is drawn in shades of grey. The picture of a plan is narrow: it fits beside
JupyterLab's list of files in a window of 1100 pixels, where its smallest letters still have 12 pixels.

A Scene is a picture as plain data: rectangles (Rect), labels and lines, in pixels from the top left corner. Plain
numbers in the code are such pixels. A kind of the palette, such as "forward", stands for a colour and a texture.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product

from helpers.draw.mesh import AXIS_KINDS, NodeLayout, axis_style, card, members_text, node_frame
from helpers.draw.palette import kind_word
from helpers.draw.scene import MARGIN, Label, Line, Rect, Scene, SceneItem, text_width, title_label
from helpers.learner.words import book
from helpers.quantities.units import format_bytes
from helpers.records import MEMORY_KINDS, MemoryBreakdown
from helpers.specs.mesh import Mesh

words = book("mesh")  # what a reader sees, by name, in the learner's language: learner/words/mesh.yaml
MOST_RANKS = 64  # of the picture
PLAN_WIDTH, _FONT, _SIDE = 640.0, 12.0, 8.0  # pixels: the picture, its letters, its margins
_TOP, _NODES_HEIGHT, _LINE = 46.0, 190.0, 20.0  # pixels: where the nodes begin, their height, from line to line
_TRAFFIC_TOP = _TOP + _NODES_HEIGHT + 18
_MEMORY_TOP = _TRAFFIC_TOP + 4 * _LINE + 10  # a line of headings, and one for each of the three axes
_HEIGHT = _MEMORY_TOP + 88
_LINK_LEFT, _BAR_LEFT, _BAR_END = 196.0, 424.0, 520.0  # pixels: columns of the traffic of each axis
_MOST_ACROSS = 16  # ranks side by side
_OPACITIES = dict(zip(MEMORY_KINDS, (0.9, 0.7, 0.52, 0.36, 0.22, 0.1), strict=True))  # of the ink, by kind of memory
cube_words = words.section("cube")

SOLID_AXES = ("pp", "dp", "tp")  # of cube_scene, in the order in which ranks are numbered: the fastest comes last
# Pixels of the solid at full size: a card, how far a replica lies right of and above the one in front, and the gap.
_CARD_WIDTH, _CARD_HEIGHT, _DEPTH, _RISE, _SOLID_GAP = 104.0, 52.0, 124.0, 72.0, 24.0
# Pixels: the left and upper edge of the solid, and the margin of a plane, on which the cards of a replica stand.
_SOLID_LEFT, _SOLID_TOP, _PLANE = 26.0, 66.0, 12.0
_SOLID_SIZE, _SMALLEST_CARD = (482.0, 440.0), 64.0  # pixels: the solid's largest size, a card's smallest width
_TEXT_LEFT, _TEXT_LINE = 556.0, 18.0  # pixels: where the text beside the solid begins, and from line to line


# -- a plan ---------------------------------------------------------------------------------------------------------
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
    return Scene(
        width=PLAN_WIDTH, height=_HEIGHT, title=title, summary=_summary(rank, uses, memory_by_rank), items=items
    )


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
    cards_width = (PLAN_WIDTH - 2 * _SIDE + between) / across - between - 2 * pad + gap
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
    scale, x, y = (PLAN_WIDTH - 2 * _SIDE) / max(limit, memory.total), _SIDE, _MEMORY_TOP + 12
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


# -- a solid ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class _Solid:
    """`at` is the middle of each rank's card, `width` and `height` are a card's, `bottom` is the solid's lower edge."""

    mesh: Mesh
    at: dict[int, tuple[float, float]]
    width: float
    height: float
    bottom: float


def cube_scene(mesh: Mesh, rank: int | None = 0) -> Scene:
    """A Scene of Mesh(dp=2, pp=2, tp=2) or a little more: a card per rank, and an edge to the next rank on each axis.

    Pipeline stages go from left to right, tensor-parallel ranks downward, and replicas lie behind each other. The
    groups of `rank` are lit. The text beside the solid says what each axis splits and sends.
    Raises ValueError for axes besides dp, pp and tp, for a rank that the mesh lacks, or for more ranks than fit.
    """
    solid = _solid(mesh)
    axes = [axis for axis in SOLID_AXES if getattr(mesh, axis) > 1]
    groups = {} if rank is None else {axis: mesh.ranks_along(axis, rank) for axis in axes}
    sizes = " × ".join(f"{axis} {getattr(mesh, axis)}" for axis in SOLID_AXES)
    title = cube_words("title", sizes=sizes, ranks=mesh.world_size)
    items: list[SceneItem] = [title_label(title)]
    if solid.width < _CARD_WIDTH:  # too narrow for the axes' names on the cards
        items.append(
            Label(x=MARGIN, y=38, text=cube_words("order", axes=", ".join(SOLID_AXES)), size=11, colour="muted")
        )
    back_to_front = sorted(solid.at, key=lambda member: -mesh.coordinates(member)["dp"])
    for replica, members in groupby(back_to_front, lambda member: mesh.coordinates(member)["dp"]):
        items += _plane(replica, solid)
        items += _edges(members, solid, ("pp", "tp"))
    items += _edges(back_to_front, solid, ("dp",))
    items += _edges(back_to_front, solid, axes, groups)  # once more, thick, where both ends are in a group of the rank
    for member in back_to_front:
        items += _solid_card(member, solid, rank, groups)
    texts = list(_axis_texts(axes, mesh, rank, groups))
    height = max([solid.bottom + 2 * _PLANE, *(text.y + 20 for text in texts)])  # the solid, or the texts beside it
    shares = [cube_words("shares", rank=rank, axis=axis, ranks=members_text(group)) for axis, group in groups.items()]
    # A text cannot join an empty list, so without groups the list has an empty text.
    summary = cube_words("summary", ranks=mesh.world_size, dp=mesh.dp, pp=mesh.pp, tp=mesh.tp, said=shares or [""])
    return Scene(height=height, title=title, summary=summary, items=(*items, *texts))


def _solid(mesh: Mesh) -> _Solid:
    """Where the cards lie. No card hides another: a step right or down leads past all replicas behind a card."""
    if mesh.cp * mesh.ep > 1:  # ep: expert parallelism
        raise ValueError(f"cube_scene draws dp, pp and tp; the mesh has cp={mesh.cp}, ep={mesh.ep}: see mesh_scene")
    behind, card_size = mesh.dp - 1, (_CARD_WIDTH, _CARD_HEIGHT)
    right, down = behind * _DEPTH + _CARD_WIDTH + _SOLID_GAP, behind * _RISE + _CARD_HEIGHT + _SOLID_GAP
    steps = {"pp": (right, 0), "tp": (0, down), "dp": (_DEPTH, -_RISE)}  # (x, y) in pixels from a rank to the next
    # For x and for y, how many pixels all steps along each axis cover; their sum and a card are the size of the solid.
    spans = [[(getattr(mesh, axis) - 1) * abs(step[xy]) for axis, step in steps.items()] for xy in (0, 1)]
    scale = min(
        1.0, *(most / (sum(span) + card) for most, span, card in zip(_SOLID_SIZE, spans, card_size, strict=True))
    )
    if _CARD_WIDTH * scale < _SMALLEST_CARD:
        sizes = f"pp {mesh.pp} × dp {mesh.dp} × tp {mesh.tp}"
        raise ValueError(f"cube_scene has no room for {sizes}; take a smaller mesh, or mesh_scene")
    width, height = _CARD_WIDTH * scale, _CARD_HEIGHT * scale
    first = (_SOLID_LEFT + width / 2, _SOLID_TOP + behind * _RISE * scale + height / 2)  # the middle of rank 0's card
    at = {}
    for rank in range(mesh.world_size):
        coordinates = mesh.coordinates(rank)
        x, y = (first[xy] + scale * sum(coordinates[axis] * step[xy] for axis, step in steps.items()) for xy in (0, 1))
        at[rank] = x, y
    bottom = max(y for _, y in at.values()) + height / 2
    return _Solid(mesh=mesh, at=at, width=width, height=height, bottom=bottom)


def _plane(replica: int, solid: _Solid) -> Iterator[Rect | Label]:
    """The plane on which the cards of a replica stand; what lies behind it looks pale."""
    mesh = solid.mesh
    x, y = solid.at[mesh.rank_at(dp=replica)]
    right, bottom = solid.at[mesh.rank_at(dp=replica, pp=mesh.pp - 1, tp=mesh.tp - 1)]
    half_width, half_height = solid.width / 2 + _PLANE, solid.height / 2 + _PLANE  # from a card's middle to the edge
    size = {"width": right - x + 2 * half_width, "height": bottom - y + 2 * half_height}
    frame = {"x": x - half_width, "y": y - half_height, **size, "radius": 8}
    # First a veil of the background's colour over all that lies behind, then a grey tint.
    for fill, opacity in (("surface", 0.55), ("other", 0.12)):
        yield Rect(**frame, fill=fill, opacity=opacity)
    yield Rect(**frame, stroke="rule")
    if mesh.dp > 1:
        corner = {"x": right + half_width, "y": y - half_height - 9, "anchor": "end"}
        # The name of a replica; the words call it a copy.
        yield Label(**corner, text=cube_words("copy", copy=replica), size=11, colour="muted")


def _edges(
    ranks: Iterable[int], solid: _Solid, axes: Iterable[str], groups: Mapping[str, list[int]] | None = None
) -> Iterator[Line]:
    """Lines from these ranks to the next on each axis; with `groups` only those inside the groups, and thick."""
    for rank, axis in product(ranks, axes):
        coordinates = {name: solid.mesh.coordinates(rank)[name] for name in SOLID_AXES}
        is_last = coordinates[axis] + 1 == getattr(solid.mesh, axis)
        if is_last or (groups is not None and rank not in groups.get(axis, ())):
            continue
        after = solid.mesh.rank_at(**coordinates | {axis: coordinates[axis] + 1})  # the next rank on this axis
        (x1, y1), (x2, y2) = solid.at[rank], solid.at[after]
        ends = {
            "x1": x1,
            "y1": y1,
            "x2": x2,
            "y2": y2,
            "tooltip": cube_words("edge", axis=axis, rank=rank, after=after),
        }
        if groups is not None:  # a wider line of ink below it frames the coloured one
            yield Line(**ends, colour="ink", width=9)
        yield Line(**ends, colour=AXIS_KINDS[axis], width=2 if groups is None else 6)


def _solid_card(
    rank: int, solid: _Solid, chosen: int | None, groups: Mapping[str, list[int]]
) -> Iterator[Rect | Label]:
    """The card of a rank of the solid, lit where it shares a group with the chosen rank."""
    axis = "chosen" if rank == chosen else next((name for name, group in groups.items() if rank in group), "")
    x, y = solid.at[rank]
    box = Rect(x=x - solid.width / 2, y=y - solid.height / 2, width=solid.width, height=solid.height, radius=5)
    yield from card(box, rank, {name: solid.mesh.coordinates(rank)[name] for name in SOLID_AXES}, axis)


def _axis_texts(axes: Iterable[str], mesh: Mesh, rank: int | None, groups: Mapping) -> Iterator[Rect | Label]:
    """What each axis splits and sends, and the group of the chosen rank on it."""
    y = _SOLID_TOP
    for axis in axes:
        yield Rect(x=_TEXT_LEFT - 24, y=y - 7, width=16, height=14, radius=2, **axis_style(axis))
        yield Label(x=_TEXT_LEFT, y=y, text=cube_words(f"{axis}.head", size=getattr(mesh, axis)), size=12, bold=True)
        group = [cube_words("group", rank=rank, ranks=members_text(groups[axis]))] if axis in groups else []
        for line in (cube_words(f"{axis}.cuts"), cube_words(f"{axis}.sends"), *group):  # cuts: what the axis splits
            y += _TEXT_LINE
            yield Label(x=_TEXT_LEFT, y=y, text=line, size=11)
        y += 2 * _TEXT_LINE
