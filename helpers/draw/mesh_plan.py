"""A plan on its machines: nodes and cards, the groups of one rank lit, what it sends on each axis and what it holds.

Each part keeps its place whatever the plan is, so that a turned dial changes what is to be seen and moves nothing else.
A colour stands for an axis, so memory is grey. The picture is narrow: it fits beside JupyterLab's list of files in a
window of 1100 pixels, and its smallest letters still have 12.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from helpers.draw.cards import card
from helpers.draw.mesh import NodeLayout, axis_look, members, node_frame
from helpers.draw.palette import kind_word
from helpers.draw.scene import Label, Line, Rect, Scene, text_width
from helpers.learner.words import book
from helpers.quantities.units import format_bytes
from helpers.records import MEMORY_KINDS, MemoryBreakdown
from helpers.specs.mesh import Mesh

say = book("mesh")
MOST_RANKS = 64
WIDTH, _FONT, _SIDE = 640.0, 12.0, 8.0  # pixels
_TOP, _AREA, _LINE = 46.0, 190.0, 20.0
_FLOWS = _TOP + _AREA + 18
_MEMORY = _FLOWS + 4 * _LINE + 10
_HEIGHT = _MEMORY + 88
_LINK, _BAR, _BAR_END = 196.0, 424.0, 520.0
_CARDS = 16  # beside each other
_SHADES = dict(zip(MEMORY_KINDS, (0.9, 0.7, 0.52, 0.36, 0.22, 0.1), strict=True))  # how strong the ink is


@dataclass(frozen=True, kw_only=True)
class AxisUse:
    """What the chosen rank does on an axis. sent: bytes of a step. link, words: what is written before and behind."""

    group: Sequence[int]
    sent: float
    link: str
    words: str


def mesh_plan_scene(
    mesh: Mesh,
    uses: Mapping[str, AxisUse],
    held: Sequence[MemoryBreakdown],
    *,
    gpus_per_node: int,
    rank: int,
    limit: float,
    limit_name: str,
    title: str,
) -> Scene:
    """uses: an axis to what `rank` does on it, drawn in this order. held: what each rank holds. limit: bytes of a card.

    ValueError for more than 64 ranks, a rank that is not there, or a `held` that is not one for each rank.
    """
    _check(mesh, held, rank)
    layout = _layout(mesh.world_size, gpus_per_node)
    items: list[Rect | Label | Line] = [Label(x=_SIDE, y=16, text=title, size=13, bold=True)]
    items.append(Label(x=_SIDE, y=34, text=say("places", axes=list(uses)), size=_FONT, colour="muted"))
    for node in range(layout.num_nodes):
        items += _node(node, layout)
    lit = {peer: axis for axis, use in uses.items() for peer in use.group} | {rank: "chosen"}
    for each, one in enumerate(held):
        place = {axis: mesh.coordinates(each)[axis] for axis in uses}
        items += _rank(layout.box_of(each), each, place, lit.get(each, ""), one.total, limit)
    items += _uses(rank, uses)
    heading = say("memory", rank=rank, held=format_bytes(held[rank].total), limit=limit_name)
    items += _memory(held[rank], limit, heading)
    return Scene(width=WIDTH, height=_HEIGHT, title=title, summary=_summary(rank, uses, held), items=tuple(items))


def _check(mesh: Mesh, held: Sequence[MemoryBreakdown], rank: int) -> None:
    mesh.coordinates(rank)  # ValueError where it is not there
    if mesh.world_size > MOST_RANKS:
        raise ValueError(say("too_many", dp=mesh.dp, pp=mesh.pp, tp=mesh.tp, ranks=mesh.world_size, most=MOST_RANKS))
    if len(held) != mesh.world_size:
        raise ValueError(f"mesh_plan_scene got {len(held)} breakdowns for {mesh.world_size} ranks; give one for each")


def _layout(world_size: int, gpus_per_node: int) -> NodeLayout:
    """Two rows of cards fill the height, or four of half the height: 16 beside each other, whatever a node holds."""
    columns, num_nodes = max(1, gpus_per_node // 2), -(-world_size // gpus_per_node)
    across = min(num_nodes, _CARDS // columns)
    bands, gap, title = -(-num_nodes // across), 2.0, 14.0
    pad = 4.0 if across * columns <= 8 else 2.0 if across <= 8 else 1.0
    between = pad + 1
    room = (WIDTH - 2 * _SIDE + between) / across - between - 2 * pad + gap
    high = (_AREA + between) / bands - between - 2 * pad - title
    return NodeLayout(
        world_size=world_size, gpus_per_node=gpus_per_node, columns=columns, nodes_across=across,
        box=min(150.0, room / columns - gap), box_height=(high - gap * (gpus_per_node > 1)) / min(2, gpus_per_node),
        top=_TOP, pad=pad, gap=gap, between=between, side=_SIDE, title=title, font=_FONT,
    )  # fmt: skip


def _node(node: int, layout: NodeLayout) -> Iterator[Rect | Label]:
    """Its frame, and what nobody uses of it as empty cards."""
    name = say("node", node=node)
    fits = text_width(name, _FONT, bold=True) < layout.node_width - 8
    yield from node_frame(node, layout, name if fits else str(node))
    for place in range(max(node * layout.gpus_per_node, layout.world_size), (node + 1) * layout.gpus_per_node):
        yield layout.box_of(place, stroke="rule", tooltip=say("unused"))


def _rank(
    box: Rect, rank: int, place: Mapping[str, int], axis: str, held: float, limit: float
) -> Iterator[Rect | Label]:
    """Its card, at whose foot a strip says how full it is; over all that lies what can be clicked."""
    foot = 7.0 if box.height > 50 else 4.0
    yield from card(replace(box, height=box.height - foot - 1), rank, place, axis, size=_FONT)
    strip = {"x": box.x, "y": box.y + box.height - foot, "height": foot, "radius": 1}
    if held <= limit:
        yield Rect(width=box.width, fill="surface", stroke="rule", **strip)
        yield Rect(width=box.width * held / limit, fill="ink", opacity=0.7, **strip)
    else:
        yield Rect(width=box.width, fill="sign", stroke="ink", stroke_width=1.5, **strip)
    words = ", ".join(f"{name} {number}" for name, number in place.items())
    tooltip = say("card", rank=rank, place=words, held=format_bytes(held))
    yield replace(box, tooltip=tooltip, pick=str(rank), is_picked=axis == "chosen")


def _uses(rank: int, uses: Mapping[str, AxisUse]) -> Iterator[Rect | Label]:
    """A row for each axis: who is in the group, what it crosses, what the rank sends."""
    for x, name in ((_SIDE, "groups"), (_LINK, "crosses"), (_BAR, "sends")):
        yield Label(x=x, y=_FLOWS, text=say(f"head.{name}", rank=rank), size=_FONT, bold=True)
    most = max(use.sent for use in uses.values()) or 1
    for number, (axis, use) in enumerate(uses.items(), 1):
        y = _FLOWS + number * _LINE
        yield Rect(x=_SIDE, y=y - 7, width=18, height=14, radius=2, **axis_look(axis))
        yield Label(x=_SIDE + 26, y=y, text=axis, size=_FONT, bold=True)
        if len(use.group) == 1:
            yield Label(x=_SIDE + 54, y=y, text=say("alone"), size=_FONT, colour="muted")
            continue
        yield Label(x=_SIDE + 54, y=y, text=members(list(use.group), most=6), size=_FONT)
        yield Label(x=_LINK, y=y, text=use.link, size=_FONT)
        long = max(1.0, (_BAR_END - _BAR) * use.sent / most)
        tooltip = say("sent", axis=axis, rank=rank, num_bytes=use.sent)
        yield Rect(x=_BAR, y=y - 8, width=long, height=16, radius=2, tooltip=tooltip, **axis_look(axis))
        yield Label(x=_BAR + long + 8, y=y, text=use.words, size=_FONT)


def _memory(one: MemoryBreakdown, limit: float, heading: str) -> Iterator[Rect | Label | Line]:
    """Its parts in a row on the axis of a GPU's memory, and always all of them below it, each with its bytes."""
    parts = {kind: getattr(one, kind) for kind in _SHADES}
    yield Label(x=_SIDE, y=_MEMORY, text=heading, size=_FONT, bold=True)
    scale, x, y = (WIDTH - 2 * _SIDE) / max(limit, one.total), _SIDE, _MEMORY + 12
    yield Rect(x=x, y=y, width=limit * scale, height=24, fill="panel", stroke="rule")
    for number, (kind, num_bytes) in enumerate(parts.items()):
        look = {"fill": "ink", "opacity": _SHADES[kind]}
        wide, said = num_bytes * scale, say("part", kind=kind_word(kind), size=format_bytes(num_bytes))
        if wide >= 0.5:
            yield Rect(x=x, y=y, width=max(0.5, wide - 1), height=24, tooltip=said, **look)
        x += wide
        left, low = _SIDE + number % 3 * 208, y + 38 + number // 3 * 20
        yield Rect(x=left, y=low - 6, width=16, height=12, **look)
        yield Rect(x=left, y=low - 6, width=16, height=12, stroke="muted")
        yield Label(x=left + 24, y=low, text=said, size=_FONT)
    end = _SIDE + limit * scale
    if one.total > limit:
        yield Rect(x=end, y=y - 2, width=x - end, height=28, stroke="ink", stroke_width=2.5)
    yield Line(x1=end, y1=y - 4, x2=end, y2=y + 28, colour="ink", width=2, dashed=True)


def _summary(rank: int, uses: Mapping[str, AxisUse], held: Sequence[MemoryBreakdown]) -> str:
    said = [
        say("summary.axis", rank=rank, axis=axis, ranks=members(list(use.group)), link=use.link, sent=use.words)
        for axis, use in uses.items()
        if len(use.group) > 1
    ]
    return say("summary.all", ranks=len(held), said=said or [""], rank=rank, held=format_bytes(held[rank].total))
