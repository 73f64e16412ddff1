"""Rows of named parts: what a step, a device or a parameter consists of, where the parts are no bytes by kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from helpers.draw.palette import PAINTS
from helpers.draw.scene import WIDTH, Label, Line, Rect, Scene, heading, text_width

_BAR, _PITCH = 28.0, 38.0


@dataclass(frozen=True, kw_only=True)
class Part:
    """text: written on it, where it fits. kind: of the palette. size: its length, in any unit."""

    text: str
    kind: str
    size: float


def parts_scene(
    rows: Mapping[str, Sequence[Part]],
    *,
    title: str,
    ends: Mapping[str, str],
    legend: Mapping[str, str] | None = None,
    limits: Mapping[str, float] | None = None,
) -> Scene:
    """A row of parts for each name, on one scale. ends: what is written at a row's end.

    legend: kind to its word. limits: name to what the device of this row holds, a dashed line. ValueError without rows.
    """
    limits = limits or {}
    lengths = {name: sum(part.size for part in parts) for name, parts in rows.items()}
    longest = max([*lengths.values(), *limits.values()], default=0)
    if not longest > 0:
        raise ValueError(f"parts_scene got {dict(rows)!r}: give at least one row with a part of a size above 0")
    look = [(word, {"fill": kind, "texture": PAINTS[kind].texture}) for kind, word in (legend or {}).items()]
    head, top = heading(title, look, WIDTH)
    left = 28 + max(text_width(name, 12) for name in rows)
    scale = (WIDTH - left - 24 - max(text_width(ends[name], 12, bold=True) for name in rows)) / longest
    items: list[Rect | Label | Line] = [*head]
    for number, (name, parts) in enumerate(rows.items()):
        y, end = top + 8 + number * _PITCH, left + max(lengths[name], limits.get(name, 0)) * scale
        items.append(Label(x=left - 12, y=y + _BAR / 2, text=name, anchor="end"))
        items += _parts(parts, left, y, scale)
        if name in limits:
            x = left + limits[name] * scale
            items.append(Line(x1=x, y1=y - 4, x2=x, y2=y + _BAR + 4, colour="ink", width=2, dashed=True))
        items.append(Label(x=end + 10, y=y + _BAR / 2, text=ends[name], bold=True))
    summary = " ".join(f"{name}: {ends[name]}." for name in rows)
    return Scene(width=WIDTH, height=top + 8 + len(rows) * _PITCH, title=title, summary=summary, items=tuple(items))


def _parts(parts: Sequence[Part], x: float, y: float, scale: float) -> Iterator[Rect | Label]:
    for part in parts:
        long = part.size * scale
        if long >= 1:
            texture = PAINTS[part.kind].texture
            yield Rect(x=x, y=y, width=long - 1, height=_BAR, fill=part.kind, texture=texture, tooltip=part.text)
        if part.text and text_width(part.text, 11) < long - 6:
            yield Label(x=x + long / 2, y=y + _BAR / 2, text=part.text, size=11, anchor="middle", on=part.kind)
        x += long
