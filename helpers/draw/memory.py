"""What fills the memory of each rank: stacked bars on one axis, and the device's limit as a line.

What does not fit is framed and said in words beside its bar.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from helpers.draw.axis import bytes_axis
from helpers.draw.palette import PAINTS, kind_word
from helpers.draw.scene import WIDTH, Label, Line, Rect, Scene, heading, kinds_legend, text_width
from helpers.learner.words import book
from helpers.quantities.units import format_bytes
from helpers.records import MEMORY_KINDS, MemoryBreakdown

say = book("memory")
_TOTALS = 116.0  # pixels right of the longest bar, for its total and what is over the limit
_EXCESS = {"stroke": "ink", "stroke_width": 2.5}


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """left, bar and pitch (from bar to bar) in pixels; scale in pixels a byte; limit in bytes, or None."""

    left: float
    scale: float
    bar: float
    pitch: float
    limit: float | None

    def x(self, num_bytes: float) -> float:
        return self.left + num_bytes * self.scale

    def excess(self, num_bytes: float) -> float:
        """Bytes beyond the limit."""
        return max(0.0, num_bytes - self.limit) if self.limit else 0.0


def memory_scene(
    breakdowns: Mapping[str, MemoryBreakdown],
    *,
    capacity: float | None = None,
    capacity_name: str = "",
    title: str = "",
    width: float = WIDTH,
) -> Scene:
    """One stacked bar for each name ("rank 0", "ZeRO-1"); a line marks `capacity` (bytes) if given.

    capacity_name is what stands before the bytes at that line, such as "H100".
    ValueError when there is nothing to draw, or for a capacity that is not above 0.
    """
    if capacity is not None and not capacity > 0:
        raise ValueError(f"capacity is {capacity!r} bytes, but a limit lies above 0; leave it out to draw none")
    largest = max([one.total for one in breakdowns.values()] + [capacity or 0], default=0)
    if not largest > 0:
        raise ValueError("memory_scene got no bytes to draw; give a dict such as {'rank 0': MemoryBreakdown(...)}")
    title, capacity_name = title or say("where"), capacity_name or say("capacity")
    kinds = [kind for kind in MEMORY_KINDS if any(getattr(one, kind) for one in breakdowns.values())]
    layout = _layout(breakdowns, largest, capacity, width)
    limited = [(say("over_limit"), _EXCESS)] if any(layout.excess(one.total) for one in breakdowns.values()) else []
    head, top = heading(title, kinds_legend(kinds) + limited, width)
    top += 26 if capacity else 8
    bottom = top + len(breakdowns) * layout.pitch - (layout.pitch - layout.bar) + 8
    items: list[Rect | Label | Line] = [*head, *bytes_axis(largest, layout.left, layout.scale, top - 6, bottom)]
    for number, (name, breakdown) in enumerate(breakdowns.items()):
        items += _stack(name, breakdown, kinds, layout, top + number * layout.pitch)
    items += _line(capacity_name, layout, top - 6, bottom, width) if capacity else []
    summary = " ".join(_sentence(name, one, layout) for name, one in breakdowns.items())
    return Scene(width=width, height=bottom + 24, title=title, summary=summary, items=tuple(items))


def _layout(breakdowns: Mapping[str, MemoryBreakdown], largest: float, limit: float | None, width: float) -> _Layout:
    left = min(260.0, 28 + max((text_width(name, 12) for name in breakdowns), default=0.0))
    bar = 28.0 if len(breakdowns) <= 8 else 20.0
    return _Layout(left=left, scale=(width - left - _TOTALS) / largest, bar=bar, pitch=bar + 10, limit=limit)


def _line(name: str, layout: _Layout, top: float, bottom: float, width: float) -> Iterator[Label | Line]:
    x, text = layout.x(layout.limit), f"{name} {format_bytes(layout.limit)}"
    half = text_width(text, 12, bold=True) / 2
    middle = min(max(x, half + 4), width - half - 4)
    yield Line(x1=x, y1=top - 2, x2=x, y2=bottom, colour="ink", width=2, dashed=True, tooltip=text)
    yield Label(x=middle, y=top - 10, text=text, anchor="middle", bold=True)


def _stack(
    name: str, breakdown: MemoryBreakdown, kinds: list[str], layout: _Layout, y: float
) -> Iterator[Rect | Label]:
    yield Label(x=layout.left - 12, y=y + layout.bar / 2, text=name, anchor="end")
    x = layout.left
    for kind in kinds:
        num_bytes = getattr(breakdown, kind)
        yield from _part(name, kind, num_bytes, x, y, layout)
        x += num_bytes * layout.scale
    over = layout.excess(breakdown.total)
    if over:
        start = layout.x(layout.limit)
        tooltip = say("over", name=name, over=over)
        yield Rect(x=start, y=y - 2, width=x - start, height=layout.bar + 4, radius=2, tooltip=tooltip, **_EXCESS)
    yield from _total(breakdown.total, over, x, y + layout.bar / 2, layout)


def _part(name: str, kind: str, num_bytes: float, x: float, y: float, layout: _Layout) -> Iterator[Rect | Label]:
    """A kind's share of a bar, with its bytes where they fit; left out below half a pixel."""
    bar, text = num_bytes * layout.scale, format_bytes(num_bytes)
    if bar >= 0.5:
        tooltip = say("part", name=name, kind=kind_word(kind), num_bytes=num_bytes)
        look = {"fill": kind, "texture": PAINTS[kind].texture if bar > 4 else "", "tooltip": tooltip}
        yield Rect(x=x, y=y, width=max(bar - 1, 0.5), height=layout.bar, **look)
    start, end = _longer_side(x, x + bar, layout)
    if text_width(text, 11) < end - start - 8:
        yield Label(x=(start + end) / 2, y=y + layout.bar / 2, text=text, size=11, anchor="middle", on=kind)


def _longer_side(start: float, end: float, layout: _Layout) -> tuple[float, float]:
    """The stretch of pixels, or the longer part of it where the limit cuts it: its text is not crossed by the line."""
    if not layout.limit or not start < layout.x(layout.limit) < end:
        return start, end
    cut = layout.x(layout.limit)
    return (start, cut) if cut - start > end - cut else (cut, end)


def _total(total: float, over: float, x: float, middle: float, layout: _Layout) -> Iterator[Label]:
    """Right of the bar, and beyond the limit's line where that would cross it."""
    text, x = format_bytes(total), x + 8
    if layout.limit and x - 8 <= layout.x(layout.limit) <= x + text_width(text, 12, bold=True):
        x = layout.x(layout.limit) + 8
    yield Label(x=x, y=middle - (7 if over else 0), text=text, size=12, bold=True)
    if over:
        yield Label(x=x, y=middle + 8, text=say("too_much", size=format_bytes(over)), size=11)


def _sentence(name: str, breakdown: MemoryBreakdown, layout: _Layout) -> str:
    kinds = (kind for kind in MEMORY_KINDS if getattr(breakdown, kind))
    parts = [f"{kind_word(kind)} {format_bytes(getattr(breakdown, kind))}" for kind in kinds]
    over = layout.excess(breakdown.total)
    ending = say("ending_over" if over else "ending_fits", size=format_bytes(over)) if layout.limit else ""
    listed = say("parts", parts=parts) if parts else ""
    return say("bar", name=name, total=format_bytes(breakdown.total), parts=listed, ending=ending)
