"""A step as a waterfall: a bar for each part, which begins where the one above it ends."""

from __future__ import annotations

from collections.abc import Mapping

from helpers.draw.palette import PAINTS
from helpers.draw.scene import WIDTH, Label, Rect, Scene, text_width
from helpers.units import format_seconds

PART_KINDS = {"compute": "forward", "communication": "communication", "waiting": "waiting", "data": "data"}
PART_KINDS |= {"host": "other"}
_TOP, _BAR, _PITCH, _RIGHT = 44.0, 26.0, 34.0, 130.0


def waterfall_scene(parts: Mapping[str, float], *, title: str) -> Scene:
    """parts: name -> seconds; a name of PART_KINDS. ValueError unless one of them is above 0."""
    whole = sum(parts.values())
    if not whole > 0:
        raise ValueError(f"waterfall_scene got {dict(parts)!r}: give at least one part of more than 0 seconds")
    left = 28 + max(text_width(name, 13) for name in parts)
    scale, x = (WIDTH - left - _RIGHT) / whole, left
    items: list[Label | Rect] = [Label(x=14, y=20, text=title, size=14, bold=True)]
    said = []
    for number, (name, seconds) in enumerate(parts.items()):
        y, kind, text = _TOP + number * _PITCH, PART_KINDS[name], f"{format_seconds(seconds)} · {seconds / whole:.0%}"
        items.append(Label(x=left - 12, y=y + _BAR / 2, text=name, size=13, anchor="end"))
        items.append(Rect(x=left, y=y, width=whole * scale, height=_BAR, fill="panel"))
        look = {"fill": kind, "texture": PAINTS[kind].texture, "radius": 2, "tooltip": f"{name}: {text}"}
        items.append(Rect(x=x, y=y, width=max(1.0, seconds * scale), height=_BAR, **look))
        x += seconds * scale
        items.append(Label(x=left + whole * scale + 10, y=y + _BAR / 2, text=text, size=13, bold=True))
        said.append(f"{name}: {text}.")
    height = _TOP + len(parts) * _PITCH
    return Scene(width=WIDTH, height=height, title=title, summary=" ".join(said), items=tuple(items))
