"""A plan on its machines: nodes and cards, the groups of one rank lit, what it sends on each axis, everybody's memory.

Each part keeps its place whatever the plan is, so that a turned dial changes what is to be seen and moves nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from helpers.draw.axis import bytes_tick, round_step
from helpers.draw.cards import card
from helpers.draw.mesh import NodeLayout, axis_look, members, node_frame
from helpers.draw.palette import PAINTS, kind_word
from helpers.draw.scene import WIDTH, Label, Line, Rect, Scene, heading, kinds_legend, text_width
from helpers.mesh import Mesh
from helpers.records import MEMORY_KINDS, MemoryBreakdown
from helpers.units import format_bytes
from helpers.words import book

say = book("mesh")
MOST_RANKS = 64
_SIDE, _TOP, _AREA, _LINE = 14.0, 50.0, 222.0, 24.0
_FLOWS = _TOP + _AREA + 16
_MEMORY = _FLOWS + 4 * _LINE + 8
_CHART = 124.0
_LINK, _BAR, _BAR_END, _LEFT = 250.0, 478.0, 650.0, 62.0
_CARDS = 16  # beside each other


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
    items: list[Rect | Label | Line] = [Label(x=_SIDE, y=20, text=title, size=14, bold=True)]
    items.append(Label(x=_SIDE, y=39, text=say("places", axes=list(uses)), size=11, colour="muted"))
    for node in range(layout.num_nodes):
        items += _node(node, layout)
    lit = {peer: axis for axis, use in uses.items() for peer in use.group} | {rank: "chosen"}
    for each in range(mesh.world_size):
        place = mesh.coordinates(each)
        items += card(layout.box_of(each), each, {axis: place[axis] for axis in uses}, lit.get(each, ""))
    items += _uses(rank, uses)
    items += _memory(held, rank, gpus_per_node, limit, limit_name)
    summary = _summary(rank, uses, held)
    return Scene(width=WIDTH, height=_MEMORY + _CHART + 58, title=title, summary=summary, items=tuple(items))


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
    bands, pad, gap, between = -(-num_nodes // across), 4.0, 3.0, 6.0
    room = (WIDTH - 2 * _SIDE + between) / across - between - 2 * pad + gap
    high = (_AREA + between) / bands - between - 2 * pad - 22
    return NodeLayout(
        world_size=world_size, gpus_per_node=gpus_per_node, columns=columns, nodes_across=across,
        box=min(150.0, room / columns - gap), box_height=(high - gap * (gpus_per_node > 1)) / min(2, gpus_per_node),
        top=_TOP, pad=pad, gap=gap, between=between,
    )  # fmt: skip


def _node(node: int, layout: NodeLayout) -> Iterator[Rect | Label]:
    """Its frame, and what nobody uses of it as empty cards."""
    name = say("node", node=node)
    fits = text_width(name, 11, bold=True) < layout.node_width - 8
    yield from node_frame(node, layout, name if fits else str(node))
    for place in range(max(node * layout.gpus_per_node, layout.world_size), (node + 1) * layout.gpus_per_node):
        yield layout.box_of(place, stroke="rule", tooltip=say("unused"))


def _uses(rank: int, uses: Mapping[str, AxisUse]) -> Iterator[Rect | Label]:
    """A row for each axis: who is in the group, what it crosses, what the rank sends."""
    for x, name in ((_SIDE, "groups"), (_LINK, "crosses"), (_BAR, "sends")):
        yield Label(x=x, y=_FLOWS, text=say(f"head.{name}", rank=rank), size=12, bold=True)
    most = max(use.sent for use in uses.values()) or 1
    for number, (axis, use) in enumerate(uses.items(), 1):
        y = _FLOWS + number * _LINE
        yield Rect(x=_SIDE, y=y - 7, width=18, height=14, radius=2, **axis_look(axis))
        yield Label(x=_SIDE + 26, y=y, text=axis, size=12, bold=True)
        if len(use.group) == 1:
            yield Label(x=_SIDE + 54, y=y, text=say("alone"), size=12, colour="muted")
            continue
        yield Label(x=_SIDE + 54, y=y, text=members(list(use.group), most=6), size=12)
        yield Label(x=_LINK, y=y, text=use.link, size=12)
        long = max(1.0, (_BAR_END - _BAR) * use.sent / most)
        tooltip = say("sent", axis=axis, rank=rank, num_bytes=use.sent)
        yield Rect(x=_BAR, y=y - 8, width=long, height=16, radius=2, tooltip=tooltip, **axis_look(axis))
        yield Label(x=_BAR + long + 8, y=y, text=use.words, size=12)


def _memory(
    held: Sequence[MemoryBreakdown], rank: int, gpus_per_node: int, limit: float, limit_name: str
) -> Iterator[Rect | Label | Line]:
    """A column for each rank, those of a node closer together, in the order of the ranks."""
    largest, bottom = max(limit, *(one.total for one in held)), _MEMORY + 34 + _CHART
    scale = _CHART / largest
    kinds = [kind for kind in MEMORY_KINDS if any(getattr(one, kind) * scale >= 0.5 for one in held)]
    for item in heading(say("memory"), kinds_legend(kinds), WIDTH)[0]:
        yield replace(item, y=item.y + _MEMORY - 20)
    yield Label(x=_SIDE, y=_MEMORY + 20, text=limit_name, size=11, colour="muted")
    yield from _grid(largest, scale, bottom)
    nodes = -(-len(held) // gpus_per_node)
    pitch = min(60.0, (WIDTH - _LEFT - 20 - 4 * nodes) / len(held))
    for each, one in enumerate(held):
        x, y = _LEFT + 6 + each * pitch + 4 * (each // gpus_per_node), bottom
        for kind in kinds:
            high = getattr(one, kind) * scale
            y -= high
            if high >= 0.5:
                texture = PAINTS[kind].texture if high > 4 and pitch > 14 else ""
                tooltip = say("part", rank=each, kind=kind_word(kind), num_bytes=getattr(one, kind))
                yield Rect(x=x, y=y, width=pitch - 2, height=high, fill=kind, texture=texture, tooltip=tooltip)
        if each == rank:
            yield Rect(x=x - 1, y=y - 1, width=pitch, height=bottom - y + 1, stroke="ink", stroke_width=2.5)
        if each == rank or len(held) <= 32 or (not each % 4 and abs(each - rank) > 2):
            look = {"bold": each == rank, "colour": "ink" if each == rank else "muted"}
            yield Label(x=x + pitch / 2 - 1, y=bottom + 11, text=str(each), size=10, anchor="middle", **look)
    y = bottom - limit * scale
    yield Line(x1=_LEFT, y1=y, x2=WIDTH - _SIDE, y2=y, colour="ink", width=1.5, dashed=True, tooltip=limit_name)


def _grid(largest: float, scale: float, bottom: float) -> Iterator[Label | Line]:
    step = round_step(largest, 4)
    for number in range(int(largest / step) + 1):
        y = bottom - number * step * scale
        yield Line(x1=_LEFT, y1=y, x2=WIDTH - _SIDE, y2=y)
        yield Label(x=_LEFT - 6, y=y, text=bytes_tick(number * step), size=10.5, anchor="end", colour="muted")


def _summary(rank: int, uses: Mapping[str, AxisUse], held: Sequence[MemoryBreakdown]) -> str:
    said = [
        say("summary.axis", rank=rank, axis=axis, ranks=members(list(use.group)), link=use.link, sent=use.words)
        for axis, use in uses.items()
        if len(use.group) > 1
    ]
    return say("summary.all", ranks=len(held), said=said or [""], rank=rank, held=format_bytes(held[rank].total))
