"""Many ranks that hold the same: equal stacks beside each other, and the memory of one device as a line."""

from __future__ import annotations

from collections.abc import Iterator

from helpers.draw.palette import PAINTS, kind_word
from helpers.draw.scene import WIDTH, Label, Line, Rect, Scene, heading, kinds_legend, text_width
from helpers.learner.words import book
from helpers.quantities.units import format_bytes
from helpers.records import MEMORY_KINDS, MemoryBreakdown

say = book("pictures")
_LEFT, _RIGHT, _HIGH = 14.0, 14.0, 190.0  # pixels; _HIGH: of the highest stack


def replicas_scene(
    held: MemoryBreakdown, num_ranks: int, *, capacity: float, title: str, width: float = WIDTH
) -> Scene:
    """`num_ranks` stacks of what each rank holds, and a dashed line at `capacity` bytes. ValueError for no rank."""
    if num_ranks < 1 or not held.total > 0:
        raise ValueError(f"copies_scene got {num_ranks} ranks of {held.total} bytes; give at least one rank and byte")
    kinds = [kind for kind in MEMORY_KINDS if getattr(held, kind)]
    head, top = heading(title, kinds_legend(kinds), width)
    scale = _HIGH / max(held.total, capacity)
    ground, pitch = top + 10 + _HIGH, (width - _LEFT - _RIGHT) / num_ranks
    items: list[Rect | Label | Line] = [*head]
    for rank in range(num_ranks):
        items += _stack(held, kinds, rank, _LEFT + rank * pitch, ground, (max(1.0, pitch * 0.75), scale))
    items += _limit(capacity, ground - capacity * scale, width)
    text = f"{num_ranks} × {format_bytes(held.total)}"
    items.append(Label(x=width / 2, y=ground + 18, text=text, size=13, anchor="middle", bold=True))
    parts = [f"{kind_word(kind)} {format_bytes(getattr(held, kind))}" for kind in kinds]
    summary = say("copies.summary", num=num_ranks, total=format_bytes(held.total), parts=parts)
    return Scene(width=width, height=ground + 34, title=title, summary=summary, items=tuple(items))


def _stack(
    held: MemoryBreakdown, kinds: list[str], rank: int, x: float, ground: float, look: tuple[float, float]
) -> Iterator[Rect]:
    wide, scale = look
    y = ground
    for kind in kinds:
        high = getattr(held, kind) * scale
        y -= high
        tooltip = f"{say('copies.gpu', number=rank)} · {kind_word(kind)} · {format_bytes(getattr(held, kind))}"
        texture = PAINTS[kind].texture if wide > 4 else ""
        yield Rect(x=x, y=y, width=wide, height=max(0.5, high - 1), fill=kind, texture=texture, tooltip=tooltip)


def _limit(capacity: float, y: float, width: float) -> Iterator[Rect | Label | Line]:
    """The words stand on a ground of their own, over the stacks."""
    text = say("copies.limit", limit=format_bytes(capacity).replace(".0 ", " "))
    wide = text_width(text, 13, bold=True) + 16
    yield Line(x1=_LEFT - 6, y1=y, x2=width - _RIGHT + 6, y2=y, colour="ink", width=2, dashed=True)
    box = {"x": width / 2 - wide / 2, "y": y - 12, "width": wide, "height": 24, "radius": 4}
    yield Rect(**box, fill="surface")
    yield Rect(**box, stroke="ink")
    yield Label(x=width / 2, y=y, text=text, size=13, anchor="middle", bold=True)
